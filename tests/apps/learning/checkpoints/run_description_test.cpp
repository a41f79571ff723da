// SPDX-License-Identifier: Apache-2.0
// The description of a run in its checkpoints: all of it comes back, earlier versions' files are read, damaged ones are
// refused by key.
#include "apps/learning/checkpoints/run_description.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace meshard {
namespace {

using nlohmann::json;

RunDescription described_run()
{
    RunDescription run;
    run.model_class = "Transolver";
    run.model_arguments = {{"n_layers", 2}};
    run.parts.resize(2);
    run.parts[0].data.fields = {{"pressure", "pMean", "kinematic"}};
    run.parts[0].data.inputs = {"points", "areas"};
    run.parts[0].data.turns_outward = true;
    run.parts[0].facing.surfaces.add(Facing::Outward);
    run.parts[1].data.fields = {{"velocity", "U", "velocity"}};
    run.fields = {{run.parts[0].data.fields[0], 1}, {run.parts[1].data.fields[0], 3}};
    run.training_mean = std::vector<float>{0.1F, -2, 3e-20F, 7};
    run.head = {{"cd"}, 32, {0.3}, {0.02}};
    run.validation_errors = {{"pressure", {{"rel_l2", 0.25}}}};
    run.seed = 7;
    run.has_step_draws = true;
    run.optimizer = "muon";
    run.train_cases = std::vector<std::string>{"1", "2"};
    run.shares_of_sets = {1, 2.5};
    run.steps_per_epoch = 4;
    run.num_steps = 40;
    run.progress = {.num_steps = 6,
                    .epoch_loss_sum = 0.1,
                    .num_left_out = 1,
                    .num_skipped = 2,
                    .best_error = 0.5,
                    .plateau = {0.1, 0.25, 3},
                    .early_stop = {0.125, 4}};
    run.optimizer_step = 5;
    run.loss_scale = {1024, 9};
    run.average_updates = 6;
    return run;
}

TEST(RunDescription, ComesBackAsItWasWritten)
{
    const auto written = to_json(described_run());

    const auto read = run_description(json::parse(written.dump()), "last.safetensors");

    EXPECT_EQ(to_json(read), written);
    EXPECT_EQ(read.parts[0].data.inputs, (std::vector<std::string>{"points", "areas"}));
    EXPECT_EQ(read.parts[1].data.fields[0].from, "U");
    EXPECT_EQ(read.training_mean, described_run().training_mean);
    EXPECT_EQ(read.progress.early_stop.bad_checks, 4);
    EXPECT_EQ(written["epoch"], 2);
    EXPECT_EQ(written["volume"]["fields"][0]["name"], "velocity");
    EXPECT_EQ(written["draws"], "of each step");
}

TEST(RunDescription, SaysOnlyWhatThereIs)
{
    const auto written = to_json(RunDescription());

    for (const char* key : {"volume", "training_mean", "coefficients", "shape_coefficients", "val", "shares_of_sets",
                            "epoch_cases_left_out", "skipped_in_a_row", "plateau", "early_stop", "optimizer_step",
                            "loss_scale", "average_updates"})
        EXPECT_FALSE(written.contains(key)) << key;
    EXPECT_EQ(json::parse(written.dump())["best_error"], nullptr);
    EXPECT_TRUE(std::isinf(run_description(json::parse(written.dump()), "last.safetensors").progress.best_error));
}

TEST(RunDescription, ReadsWhatEarlierVersionsWrote)
{
    const auto read = run_description(
        json::parse(R"({"model_class": "FLARE", "model": {}, "step": 3, "fields": [{"channels": 3, "name": "p"}]})"),
        "last.safetensors");

    EXPECT_EQ(read.optimizer, "adamw");
    EXPECT_FALSE(read.seed || read.train_cases || read.steps_per_epoch || read.has_step_draws);
    EXPECT_TRUE(read.parts.at(0).data.fields.empty());
    EXPECT_EQ(read.fields.at(0).num_channels, 3);
    require_same_run(read, read);
}

TEST(RunDescription, RefusesByKeyWhatIsMissingOrWrong)
{
    const auto refuses = [](const std::function<void(json&)>& change, const std::string& text) {
        auto damaged = to_json(described_run());
        change(damaged);
        return throws_with<IoError>("runs/last.safetensors: " + text,
                                    [&] { run_description(damaged, "runs/last.safetensors"); });
    };

    EXPECT_TRUE(refuses([](json& run) { run.erase("step"); },
                        "'step' in the description of the run is missing, expected an integer"));
    EXPECT_TRUE(refuses([](json& run) { run["step"] = 3.5; },
                        "'step' in the description of the run is 3.5, expected an integer"));
    EXPECT_TRUE(refuses([](json& run) { run["train_cases"] = "1"; },
                        "'train_cases' in the description of the run is \"1\", expected an array"));
    EXPECT_TRUE(refuses([](json& run) { run["plateau"].erase("factor"); },
                        "'plateau.factor' in the description of the run is missing, expected a number"));
    EXPECT_TRUE(refuses([](json& run) { run["fields"][1].erase("channels"); },
                        "'fields[1].channels' in the description of the run is missing"));
    EXPECT_TRUE(refuses([](json& run) { run["data"]["association"] = "cells"; },
                        "'data.association' in the description of the run is \"cells\", expected 'cell' or 'point'"));
    EXPECT_TRUE(refuses([](json& run) { run["input_ranges"] = 3; },
                        "'input_ranges' in the description of the run is 3, expected an object"));
    EXPECT_TRUE(refuses([](json& run) { run["coefficients"] = 3; },
                        "'coefficients' in the description of the run is 3, expected an object"));
}

}  // namespace
}  // namespace meshard
