// SPDX-License-Identifier: Apache-2.0
// meshard predict: a run's folder and meshes -> the same meshes with predicted fields.
#include <filesystem>
#include <iostream>
#include <map>
#include <set>

#include <CLI/CLI.hpp>

#include "apps/command_line.h"
#include "apps/prediction.h"
#include "apps/rank_program.h"
#include "apps/verbs.h"

namespace meshard {
namespace {

struct PredictArguments {
    std::string run_dir;
    std::vector<std::string> inputs;
    std::string output;
    std::map<std::string, double> values;
    int num_ranks = 0;
};

bool parse(std::span<const std::string> arguments, PredictArguments& options)
{
    CLI::App app("Predicts a run's fields on new meshes and writes them beside the meshes' own arrays, in physical units. A field is\n"
                 "called as in the run's configuration (data.fields), with `_predicted` added where the mesh has such an array already.",
                 "predict");
    std::vector<std::string> settings;
    app.add_option("run", options.run_dir, "folder of a run of `meshard train`")->required()->type_name("RUN_DIR");
    app.add_option("input", options.inputs, "meshes without the fields (.vtp .vtu .stl .ply .vtk)")->required()->type_name("INPUT...");
    app.add_option("-o,--output", options.output, "file to write: .vtp .vtu, or .pvtp .pvtu with a piece a rank; of several inputs: a folder")
        ->required()->type_name("OUT");
    app.add_option("--set", settings, "a value that stood in the case table in training, e.g. length=1.044")->type_name("NAME=VALUE");
    app.add_option("--nproc", options.num_ranks, "start this many ranks on this machine")->check(CLI::PositiveNumber)->type_name("N");
    if (!parse_arguments(app, arguments)) return false;

    for (const auto& word : settings) {
        const auto equals = word.find('=');
        if (equals == std::string::npos || equals == 0) throw UsageError("--set " + word + ": expected NAME=VALUE, e.g. length=1.044.");
        options.values[word.substr(0, equals)] = parse_numbers(word.substr(equals + 1), "--set " + word.substr(0, equals), 1)[0];
    }
    return true;
}

/// Input and output of each prediction.
std::vector<std::pair<std::filesystem::path, std::filesystem::path>> jobs(const PredictArguments& options)
{
    std::vector<std::pair<std::filesystem::path, std::filesystem::path>> jobs;
    const std::filesystem::path output = options.output;
    for (const auto& input : options.inputs) {
        if (!std::filesystem::exists(input)) throw IoError(input + " does not exist.");
    }
    const std::set<std::filesystem::path> file_types{".vtp", ".vtu", ".pvtp", ".pvtu"};
    if (file_types.count(output.extension())) {
        if (options.inputs.size() > 1) throw UsageError("-o " + options.output + " is one file for " + std::to_string(options.inputs.size()) + " inputs; name a folder.");
        jobs.emplace_back(options.inputs.front(), output);
        return jobs;
    }
    if (output.has_extension() && options.inputs.size() == 1) {
        throw UsageError("-o " + options.output + " must end in .vtp, .vtu, .pvtp or .pvtu.");
    }
    for (const std::filesystem::path input : options.inputs) {
        const bool is_unstructured = input.extension() == ".vtu" || input.extension() == ".pvtu";
        auto name = input.stem();
        name += is_unstructured ? ".vtu" : ".vtp";
        for (const auto& [other, taken] : jobs) {
            if (taken == output / name) throw UsageError("two inputs would be written to " + taken.string() + ".");
        }
        jobs.emplace_back(input, output / name);
    }
    return jobs;
}

}  // namespace

int predict_command(std::span<const std::string> arguments)
{
    PredictArguments options;
    if (!parse(arguments, options)) return exit_code::ok;
    const auto work = jobs(options);
    keep_freed_memory();

    const auto verify = [&](int) { Predictor{options.run_dir}; };
    const auto body = [&](World& world) {
        Predictor predictor(options.run_dir);
        if (world.rank() == 0) std::filesystem::create_directories(std::filesystem::absolute(work.front().second).parent_path());
        for (const auto& [input, output] : work) {
            predict_file(predictor, input, output, options.values, world);
            if (world.rank() == 0) std::cout << output.string() << " (model: " << predictor.checkpoint().string() << ")" << std::endl;
        }
        return exit_code::ok;
    };
    return run_on_ranks(options.num_ranks, "predict", arguments, verify, body);
}

}  // namespace meshard
