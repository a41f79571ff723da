// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/apps/program_test.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/test_paths.h"

#include <cstdlib>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace meshard {

/// Three small cases and a configuration, car.yaml, that trains on two of them; run_id `car`.
class SmallTraining : public ProgramTest {
protected:
    SmallTraining()
    {
        for (int id = 0; id < 3; ++id) {
            Mesh mesh = sphere(7);
            mesh.point_data.clear();
            std::vector<float> pressure;
            for (std::int64_t i = 0; i < mesh.num_cells(); ++i) pressure.push_back(static_cast<float>((i + id) % 17));
            mesh.cell_data = {DataArray::from("pMean", pressure)};
            write("body_" + std::to_string(id) + ".vtp", mesh);
        }
        write_text("car.yaml", "run_id: car\n"
                               "data:\n"
                               "  root: " +
                                   path("") +
                                   "\n"
                                   "  surface: body_*.vtp\n"
                                   "  split: {train: ['0', '1'], val: ['2']}\n"
                                   "  fields: {pressure: {from: pMean, kind: kinematic}}\n"
                                   "model: {n_layers: 2, n_hidden: 16, n_head: 2, mlp_ratio: 2, slice_num: 8}\n"
                                   "training: {num_epochs: 5, val_interval: 1}\n");
    }

    /// Losses of the lines of a run's metrics that have one of these phases, in the order of the file.
    std::vector<double> losses(const std::string& output_dir,
                               const std::set<std::string>& phases = {"train_step"}) const
    {
        std::vector<double> found;
        std::istringstream file(content_of(path(output_dir + "/car/metrics.jsonl")));
        for (std::string text; std::getline(file, text);) {
            const auto line = nlohmann::json::parse(text);
            if (phases.contains(line.at("phase"))) found.push_back(line.at("loss").get<double>());
        }
        return found;
    }

    /// `meshard` with these words as so many ranks that mpirun starts.
    static ProgramResult mpirun(int num_ranks, std::vector<std::string> words, const ProgramOptions& options = {})
    {
        for (const char* name : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"}) setenv(name, "1", 1);
        words.insert(words.begin(), {"--oversubscribe", "-np", std::to_string(num_ranks), program_path()});
        return run_program(mpirun_path(), words, options);
    }
};

}  // namespace meshard
