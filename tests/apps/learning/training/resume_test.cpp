// SPDX-License-Identifier: Apache-2.0
// A run that was stopped, interrupted or killed goes on to the same bits, and its records say each step once.
#include "io/checkpoints/safetensors.h"
#include "models/registry/registry.h"
#include "partition/mesh/surface_geometry.h"
#include "tests/apps/program_test.h"
#include "tests/support/sample_meshes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <functional>
#include <set>

namespace meshard {
namespace {

using nlohmann::json;

class Resume : public ProgramTest {
protected:
    Resume()
    {
        for (int id = 0; id < 4; ++id) write_body(id);
    }

    /// @param times   multiplies the pressure, and `length` the places along x
    void write_body(int id, double times = 1, double length = 1) const
    {
        auto mesh = sphere(4);
        mesh.point_data.clear();
        std::vector<float> pressure, none;
        for (const auto& area : area_vectors(mesh)) {
            const auto size = std::hypot(area[0], area[1], area[2]);
            pressure.push_back(static_cast<float>(times * (50 * area[0] / size + 10 * id + 3 * area[1] / size)));
            none.push_back(0);
        }
        auto points = mesh.points.to_doubles();
        for (std::size_t i = 0; i < points.size(); i += 3) points[i] *= length;
        mesh.points = DataArray::from("Points", points, 3);
        mesh.cell_data = {DataArray::from("pMean", pressure), DataArray::from("zero", none)};
        write("body_" + std::to_string(id) + ".vtp", mesh);
    }

    ProgramResult train(const std::string& model, const std::string& output_dir, std::vector<std::string> more = {},
                        const ProgramOptions& options = {}) const
    {
        write_text("car.yaml", "run_id: car\n"
                               "data:\n"
                               "  root: " +
                                   path("") +
                                   "\n"
                                   "  surface: body_*.vtp\n"
                                   "  split: {train: ['0', '1', '2'], val: ['3']}\n"
                                   "  fields: {pressure: {from: pMean}}\n"
                                   "  shards: " +
                                   path("shards") +
                                   "\n"
                                   "model: " +
                                   model +
                                   "\n"
                                   "training: {num_epochs: 2, optimizer: {lr: 3.0e-3}}\n");
        std::vector<std::string> arguments{"train", path("car.yaml"), "output_dir=" + path(output_dir)};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return meshard(arguments, options);
    }

    ProgramResult resume(const std::string& output_dir, std::vector<std::string> more = {},
                         const ProgramOptions& options = {}) const
    {
        more.insert(more.begin(), {"train", "--resume", path(output_dir + "/car")});
        return meshard(more, options);
    }

    std::string metrics(const std::string& output_dir) const { return path(output_dir + "/car/metrics.jsonl"); }
    std::string last(const std::string& output_dir) const
    {
        return path(output_dir + "/car/checkpoints/last.safetensors");
    }

    /// Of each step its number and loss; the test fails if a line is no JSON.
    std::vector<std::pair<int, double>> losses(const std::string& output_dir) const
    {
        std::vector<std::pair<int, double>> losses;
        std::istringstream file(content_of(metrics(output_dir)));
        for (std::string text; std::getline(file, text);) {
            const auto line = json::parse(text, nullptr, false);
            EXPECT_TRUE(line.is_object()) << text;
            if (line.is_object() && line["phase"] == "train_step") losses.emplace_back(line["step"], line["loss"]);
        }
        return losses;
    }

    int num_steps(const std::string& output_dir) const
    {
        const auto text = content_of(metrics(output_dir));
        int count = 0;
        for (auto place = text.find("train_step"); place != std::string::npos;
             place = text.find("train_step", place + 1))
            ++count;
        return count;
    }

    /// Weights, moments and normaliser in every bit; what the checkpoint says of itself, but for one key; every loss.
    void expect_same(const std::string& found_dir, const std::string& expected_dir,
                     const std::string& ignored_key = "") const
    {
        const auto found = read_safetensors(last(found_dir)), expected = read_safetensors(last(expected_dir));
        EXPECT_EQ(found.arrays.size(), expected.arrays.size());
        bool has_moments = false;
        for (const auto& array : expected.arrays) {
            const auto* other = found.find(array.name);
            ASSERT_NE(other, nullptr) << array.name;
            EXPECT_TRUE(std::ranges::equal(array.bytes(), other->bytes())) << array.name;
            has_moments |= array.name.starts_with("optimizer.exp_avg_sq.");
        }
        EXPECT_TRUE(has_moments);
        const auto description = [&](const NamedArrays& checkpoint) {
            auto all = json::parse(checkpoint.metadata.at("meshard"));
            for (const char* ignored : {ignored_key.c_str(), "cases_per_step"}) all.erase(ignored);
            return all;
        };
        EXPECT_EQ(description(found), description(expected));
        EXPECT_EQ(losses(found_dir), losses(expected_dir));
    }

    void change_description(const std::string& file, const std::function<void(json&)>& change) const
    {
        auto checkpoint = read_safetensors(file);
        auto description = json::parse(checkpoint.metadata.at("meshard"));
        change(description);
        checkpoint.metadata["meshard"] = description.dump();
        write_safetensors(file + ".new", checkpoint);
        std::filesystem::rename(file + ".new", file);
    }
};

const char* const kSmall = "{n_layers: 1, n_hidden: 8, n_head: 2, mlp_ratio: 1, slice_num: 4}";
const char* const kDrawing =
    "{plus: true, dropout: 0.3, n_layers: 1, n_hidden: 8, n_head: 2, mlp_ratio: 1, slice_num: 4}";

struct Trained {
    const char* name;
    std::string model;
    std::vector<std::string> settings = {};
};

const std::vector<Trained> kTrained{
    {"transolver", kSmall},
    {"transolver", "{dropout: 0.3, n_layers: 2, n_hidden: 8, n_head: 2, mlp_ratio: 1, slice_num: 4}"},
    {"transolver", "{plus: true, n_layers: 2, n_hidden: 8, n_head: 2, mlp_ratio: 1, slice_num: 4}"},
    {"transolver",
     "{plus: true, n_layers: 2, n_hidden: 8, n_head: 2, mlp_ratio: 1, slice_num: 4}",
     {"training.memory=streamed"}},
    {"transolver", kDrawing, {"training.memory=recomputed"}},
    {"flare", "{name: flare, dropout: 0.3, n_layers: 1, n_hidden: 8, n_head: 2, mlp_ratio: 1, slice_num: 4}"},
    {"geotransolver",
     "{name: geotransolver, plus: true, dropout: 0.3, n_layers: 1, n_hidden: 8, n_head: 2, slice_num: 4}"},
    {"geotransolver", "{name: geotransolver, dropout: 0.3, concrete_dropout: true, include_local_features: true, "
                      "radii: [0.5], neighbors_in_radius: [3], n_hidden_local: 4, "
                      "n_layers: 1, n_hidden: 8, n_head: 2, slice_num: 4}"},
    {"geotransolver",
     "{name: geotransolver, attention_type: GALE_FA, dropout: 0.3, n_layers: 1, n_hidden: 8, n_head: 2, slice_num: 4}",
     {"training.memory=recomputed"}},
    {"meshgraphnet", "{name: meshgraphnet, processor_size: 1, hidden_dim_processor: 8, num_neighbors: 4}"},
    {"figconvunet", "{name: figconvunet, num_levels: 1, hidden_channels: [4, 4]}"},
};

TEST_F(Resume, OfEveryModelSixStepsAreFourAndTwo)
{
    std::set<std::string> names;
    for (std::size_t i = 0; i < kTrained.size(); ++i) {
        const auto& one = kTrained[i];
        SCOPED_TRACE(one.model);
        const std::string num_ranks = names.insert(one.name).second ? "2" : "1";  // each model on two, its forms on one
        auto settings = one.settings;
        settings.insert(settings.end(), {"--nproc", num_ranks});
        const auto whole = "whole" + std::to_string(i), parts = "parts" + std::to_string(i);
        const auto result = train(one.model, whole, settings);
        ASSERT_EQ(result.exit_code, 0) << result.err;
        ASSERT_EQ(losses(whole).size(), 6U);
        settings.push_back("training.max_steps=4");  // in the middle of an epoch of three
        ASSERT_EQ(train(one.model, parts, settings).exit_code, 0);
        ASSERT_EQ(losses(parts).size(), 4U);

        const auto resumed = resume(parts, {"--nproc", num_ranks, "training.max_steps=0"});

        ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
        EXPECT_EQ(resumed.err.find("warning"), std::string::npos) << resumed.err;
        expect_same(parts, whole, "best_error");  // a run that ends at its max_steps is validated there, too
    }
    for (const auto& entry : registered_models()) {
        if (entry.of_bodies()) continue;              // programs' tests of cases with bodies resume them
        const bool takes_points = !entry.of_grids();  // others cannot be trained
        EXPECT_TRUE(names.contains(entry.name) == takes_points)
            << entry.name << (takes_points ? " is not among kTrained" : " is a model of grids");
    }
}

TEST_F(Resume, GoesOnAfterInterruptionsAsIfThereHadBeenNone)
{
    const std::vector<std::string> settings{"training.num_epochs=60", "--nproc", "2"};
    const auto whole = train(kDrawing, "whole", settings);
    ASSERT_EQ(whole.exit_code, 0) << whole.err;

    int num_interrupted = 0;
    for (const int after : {5, 40, 100}) {
        ProgramOptions options;
        options.interrupt_when = [&] { return num_steps("parts") >= after; };
        const auto result = num_interrupted == 0 ? train(kDrawing, "parts", settings, options)
                                                 : resume("parts", {"--nproc", "2"}, options);
        ASSERT_TRUE(result.exit_code == 130 || result.exit_code == 0) << result.err;
        num_interrupted += result.exit_code == 130;
    }
    EXPECT_GT(num_interrupted, 0);
    ASSERT_EQ(resume("parts", {"--nproc", "2"}).exit_code, 0);

    expect_same("parts", "whole");
}

TEST_F(Resume, RecordsEachStepOnceAfterACrash)
{
    ASSERT_EQ(train(kSmall, "whole", {"training.num_epochs=4"}).exit_code, 0);
    ASSERT_EQ(train(kSmall, "parts", {"training.num_epochs=2"}).exit_code, 0);
    const auto kept = content_of(metrics("parts"));
    const auto checkpoint = content_of(last("parts"));
    ASSERT_EQ(resume("parts", {"training.num_epochs=4", "training.max_steps=9"}).exit_code, 0);
    // As if the process had died in step 10, before the checkpoint of the third epoch was written: its records are
    // there, the last one is half.
    write_text("parts/car/checkpoints/last.safetensors", checkpoint);
    std::ofstream(metrics("parts"), std::ios::app) << R"({"phase":"train_step","st)";

    const auto result = resume("parts", {"training.max_steps=0"});  // four epochs were set by the resume before

    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_TRUE(content_of(metrics("parts")).starts_with(kept));
    const auto found = losses("parts");
    ASSERT_EQ(found.size(), 12U);
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i].first, static_cast<int>(i) + 1);
    std::set<int> epochs;
    std::istringstream file(content_of(metrics("parts")));
    for (std::string text; std::getline(file, text);) {
        const auto line = json::parse(text);
        if (line["phase"] == "train") {
            EXPECT_TRUE(epochs.insert(line["epoch"].get<int>()).second) << text;
        }
    }
    EXPECT_EQ(epochs, (std::set<int>{1, 2, 3, 4}));
}

TEST_F(Resume, GoesOnWithoutRecords)
{
    ASSERT_EQ(train(kSmall, "runs", {"training.max_steps=3"}).exit_code, 0);
    std::filesystem::remove(metrics("runs"));

    ASSERT_EQ(resume("runs", {"training.max_steps=5"}).exit_code, 0);

    EXPECT_EQ(losses("runs").size(), 2U);
}

TEST_F(Resume, SaysWhatIsNotExactWithAnOldCheckpoint)
{
    ASSERT_EQ(train(kDrawing, "runs", {"training.max_steps=4"}).exit_code, 0);
    change_description(last("runs"), [](json& description) {
        for (const char* key : {"seed", "draws", "train_cases"}) description.erase(key);
    });

    const auto result = resume("runs", {"training.max_steps=0"});

    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.err.find("warning: the checkpoint is of an earlier meshard"), std::string::npos) << result.err;
    EXPECT_NE(result.err.find("with dropout"), std::string::npos) << result.err;
    EXPECT_EQ(losses("runs").size(), 6U);
}

TEST_F(Resume, GoesOnOnOtherNumbersOfRanks)
{
    const std::string noisy = "{plus: true, n_layers: 1, n_hidden: 8, n_head: 2, mlp_ratio: 1, slice_num: 4}";
    ASSERT_EQ(train(noisy, "whole").exit_code, 0);
    for (const char* num_ranks : {"2", "3"}) {
        const std::string parts = std::string("parts") + num_ranks;
        ASSERT_EQ(train(noisy, parts, {"training.max_steps=4"}).exit_code, 0);

        const auto result = resume(parts, {"training.max_steps=0", "--nproc", num_ranks});

        ASSERT_EQ(result.exit_code, 0) << result.err;
        const auto found = losses(parts), expected = losses("whole");
        ASSERT_EQ(found.size(), expected.size());
        for (std::size_t i = 0; i < found.size(); ++i)
            EXPECT_NEAR(found[i].second, expected[i].second, 1e-4 * expected[i].second) << "step " << found[i].first;
    }
}

TEST_F(Resume, RefusesAnotherRun)
{
    ASSERT_EQ(train(kSmall, "runs", {"training.max_steps=4"}).exit_code, 0);
    const auto before = content_of(metrics("runs"));
    const auto refuses = [&](const std::vector<std::string>& settings, const std::string& text) {
        const auto result = resume("runs", settings);
        EXPECT_EQ(result.exit_code, 3) << result.err;
        EXPECT_NE(result.err.find(text), std::string::npos) << result.err;
        EXPECT_EQ(content_of(metrics("runs")), before);
    };

    refuses({"seed=5"}, "made with seed");
    refuses({"data.fields.pressure.from=zero"}, "data.fields was");
    refuses({"data.split.train=['0', '1']"}, "the run trained on 3 cases");
    refuses({"--nproc", "2", "parallel.data=2"}, "3 steps an epoch, and has 2 now");
    refuses({"model.n_hidden=16"}, "the model's is");
}

TEST_F(Resume, ChoosesTheBestAnewByOtherValidationCases)
{
    ASSERT_EQ(train(kSmall, "runs").exit_code, 0);
    change_description(last("runs"), [](json& description) { description["best_error"] = 0; });
    write_body(4);
    const auto epoch_of_best = [&] {
        const auto best = read_safetensors(path("runs/car/checkpoints/best.safetensors"));
        return json::parse(best.metadata.at("meshard"))["epoch"].get<int>();
    };

    EXPECT_EQ(resume("runs", {"training.num_epochs=3"}).exit_code, 0);
    EXPECT_LT(epoch_of_best(), 3);
    const auto result = resume("runs", {"training.num_epochs=4", "data.split.val=['4']"});

    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.err.find("the validation cases are others than before"), std::string::npos) << result.err;
    EXPECT_EQ(epoch_of_best(), 4);
}

TEST_F(Resume, RefusesTrainingCasesThatHaveChanged)
{
    ASSERT_EQ(train(kSmall, "runs", {"training.max_steps=4"}).exit_code, 0);
    const auto before = content_of(metrics("runs"));
    const auto refuses = [&](const std::string& text) {
        const auto result = resume("runs", {"training.max_steps=5"});
        EXPECT_EQ(result.exit_code, 3) << result.err;
        EXPECT_NE(result.err.find(text), std::string::npos) << result.err;
        EXPECT_EQ(content_of(metrics("runs")), before);
    };

    write_body(1, 1.5);
    refuses("pressure had mean ");
    write_body(1, 1, 2);
    refuses("normals.y went from ");
    write_body(1);
    for (int id = 0; id < 3; ++id) write_body(id, -3);
    refuses("pressure had mean ");

    const auto accepted = resume("runs", {"training.max_steps=5", "--accept-data"});
    EXPECT_EQ(accepted.exit_code, 0) << accepted.err;
    EXPECT_NE((accepted.out + accepted.err).find("accepted, though: the training cases are not what they were"),
              std::string::npos)
        << accepted.err;
}

TEST_F(Resume, WritesTheBestCheckpointOfAFieldThatIsZero)
{
    const auto result = train(kSmall, "runs", {"data.fields.pressure.from=zero"});

    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_TRUE(std::filesystem::exists(path("runs/car/checkpoints/best.safetensors")));
    const auto description = json::parse(content_of(path("runs/car/checkpoints/last.json")));
    EXPECT_TRUE(description["best_error"].is_number()) << description["best_error"];
    EXPECT_TRUE(std::isfinite(description["val"]["pressure"]["rel_l2"].get<double>()));
}

class DataGroups : public Resume {
protected:
    /// The cases of a run's steps, first to last, of every epoch.
    void order(const std::vector<std::vector<int>>& epochs) const
    {
        std::string text;
        for (std::size_t e = 0; e < epochs.size(); ++e) {
            json line{{"epoch", e + 1}, {"order", json::array()}};
            for (const auto id : epochs[e]) line["order"].push_back(std::to_string(id));
            text += line.dump() + "\n";
        }
        write_text("order.jsonl", text);
    }
};

TEST_F(DataGroups, WithoutACaseAddNothing)
{
    // One case: the second and third group have none, so that the run is that of one rank.
    const std::vector<std::string> one_case{"data.split.train=['1']", "training.num_epochs=4"};
    ASSERT_EQ(train(kDrawing, "serial", one_case).exit_code, 0);
    for (const char* num_ranks : {"2", "4"}) {  // powers of two: the mean is exact
        auto settings = one_case;
        settings.insert(settings.end(), {"--nproc", num_ranks, std::string("parallel.data=") + num_ranks});
        const auto groups = std::string("groups") + num_ranks;

        const auto result = train(kDrawing, groups, settings);

        ASSERT_EQ(result.exit_code, 0) << result.err;
        EXPECT_NE(result.err.find("the last step of an epoch has 1"), std::string::npos) << result.err;
        expect_same(groups, "serial", "epoch_loss_sum");  // which counts the shares of the groups
    }
}

TEST_F(DataGroups, CountEachCaseOnceInAnEpoch)
{
    // Steps of two cases, then of the third alone; without learning each case's loss is its own.
    const std::vector<std::string> settings{"training.num_epochs=1", "training.optimizer.lr=1.0e-30",
                                            "training.order_file=" + path("order.jsonl")};
    order({{2, 0, 1}});
    ASSERT_EQ(train(kSmall, "serial", settings).exit_code, 0);
    auto in_groups = settings;
    in_groups.insert(in_groups.end(), {"--nproc", "2", "parallel.data=2"});

    const auto result = train(kSmall, "groups", in_groups);

    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto alone = losses("serial"), together = losses("groups");
    ASSERT_EQ(alone.size(), 3U);
    ASSERT_EQ(together.size(), 2U);
    EXPECT_NEAR(together[0].second, 0.5 * (alone[0].second + alone[1].second), 1e-6 * alone[0].second);
    EXPECT_NEAR(together[1].second, alone[2].second, 1e-6 * alone[2].second);
    const auto mean_of = [&](const std::string& output_dir) {
        std::istringstream file(content_of(metrics(output_dir)));
        for (std::string text; std::getline(file, text);) {
            const auto line = json::parse(text);
            if (line["phase"] == "train") return line["loss"].get<double>();
        }
        return std::nan("");
    };
    EXPECT_NEAR(mean_of("groups"), mean_of("serial"), 1e-6 * mean_of("serial"));
}

TEST_F(DataGroups, GoOnInTheMiddleOfAnEpoch)
{
    const std::vector<std::string> settings{"--nproc", "2", "parallel.data=2", "training.num_epochs=3"};
    ASSERT_EQ(train(kDrawing, "whole", settings).exit_code, 0);
    auto stopped = settings;
    stopped.push_back("training.max_steps=3");
    ASSERT_EQ(train(kDrawing, "parts", stopped).exit_code, 0);

    const auto result = resume("parts", {"--nproc", "2", "training.max_steps=0"});

    ASSERT_EQ(result.exit_code, 0) << result.err;
    expect_same("parts", "whole", "best_error");
}

}  // namespace
}  // namespace meshard
