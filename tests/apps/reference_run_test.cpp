// SPDX-License-Identifier: Apache-2.0
// `meshard train` against runs of the reference implementation: same cases, initial weights and order of cases.
#include <algorithm>
#include <fstream>

#include <gtest/gtest.h>

#include "tests/apps/program_test.h"
#include "tests/support/test_paths.h"

namespace meshard {
namespace {

using nlohmann::json;

const std::string kCases = source_path("../shared/data/ahmed_mini");
const std::string kReference = source_path("../shared/fixtures/training");

class ReferenceRun : public ProgramTest {
protected:
    void SetUp() override
    {
        if (!std::filesystem::exists(kCases) || !std::filesystem::exists(kReference)) GTEST_SKIP() << "the reference's cases and logs are not here";
    }

    /// Trains like the reference's run of this seed, for some epochs of its thirty.
    void train(int seed, int num_epochs, int num_ranks)
    {
        const auto stem = std::string(kReference) + "/";
        const auto log = stem + "log_seed" + std::to_string(seed) + ".jsonl";
        write_text("ahmed.yaml",
                   "run_id: run\n"
                   "output_dir: " + path("") + "\n"
                   "data:\n"
                   "  root: " + std::string(kCases) + "\n"
                   "  surface: boundary_*.vtp\n"
                   "  cases: cases.json\n"
                   "  split: {column: split}\n"
                   "  fields: {pressure: {from: pMean}, wss: {from: wallShearStressMean}}\n"
                   "  length: length\n"
                   "model: {n_layers: 4, n_hidden: 64, n_head: 4, mlp_ratio: 2, slice_num: 32}\n"
                   "training:\n"
                   "  num_epochs: 30\n"
                   "  max_steps: " + std::to_string(32 * num_epochs) + "\n"
                   "  init: " + stem + "init_seed" + std::to_string(seed) + ".safetensors\n"
                   "  order_file: " + log + "\n"
                   "  val_interval: 10\n");
        const auto result = meshard({"train", path("ahmed.yaml"), "--nproc", std::to_string(num_ranks)});
        ASSERT_EQ(result.exit_code, 0) << result.err;

        std::istringstream own(content_of(path("run/metrics.jsonl")));
        for (std::string text; std::getline(own, text);) {
            const auto line = json::parse(text);
            if (line["phase"] == "train") losses_.push_back(line["loss"].get<double>());
            if (line["phase"] == "test") test_ = line["metrics"];
        }
        std::istringstream reference(content_of(log));
        for (std::string text; std::getline(reference, text);) {
            const auto line = json::parse(text);
            if (line.contains("train_loss")) expected_.push_back(line["train_loss"].get<double>());
        }
    }

    std::vector<double> losses_;
    std::vector<double> expected_;
    json test_;
};

TEST_F(ReferenceRun, FirstEpochAgrees)
{
    train(0, 1, 1);

    ASSERT_EQ(losses_.size(), 1U);
    EXPECT_NEAR(losses_[0], expected_[0], 1e-4 * expected_[0]);
}

TEST_F(ReferenceRun, FirstAndTenthEpochAgreeOnTwoRanks)
{
    train(1, 10, 2);

    ASSERT_EQ(losses_.size(), 10U);
    EXPECT_NEAR(losses_[0], expected_[0], 1e-4 * expected_[0]);
    EXPECT_NEAR(losses_[9], expected_[9], 1e-2 * expected_[9]);
}

}  // namespace
}  // namespace meshard
