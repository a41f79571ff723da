// SPDX-License-Identifier: Apache-2.0
// `meshard train` against runs of the reference implementation: same cases, initial weights and order of cases.
#include "tests/apps/program_test.h"
#include "tests/support/fixture_cases.h"
#include "tests/support/test_paths.h"

#include <gtest/gtest.h>

namespace meshard {
namespace {

using nlohmann::json;

const std::string kCases = source_path("../shared/data/ahmed_mini");

class ReferenceRun : public ProgramTest, public testing::WithParamInterface<test::TrainingFixture> {
protected:
    void SetUp() override
    {
        if (!std::filesystem::exists(kCases))
            GTEST_SKIP() << "the cases of the reference's runs are not here: " << kCases;
    }

    /// Trains like the reference's run, for some epochs of its thirty.
    void train(int num_epochs, int num_ranks)
    {
        write_text("ahmed.yaml", "run_id: run\n"
                                 "output_dir: " +
                                     path("") +
                                     "\n"
                                     "data:\n"
                                     "  root: " +
                                     kCases +
                                     "\n"
                                     "  surface: boundary_*.vtp\n"
                                     "  cases: cases.json\n"
                                     "  split: {column: split}\n"
                                     "  fields: {pressure: {from: pMean}, wss: {from: wallShearStressMean}}\n"
                                     "  length: length\n"
                                     "model: {n_layers: 4, n_hidden: 64, n_head: 4, mlp_ratio: 2, slice_num: 32}\n"
                                     "training:\n"
                                     "  num_epochs: 30\n"
                                     "  max_steps: " +
                                     std::to_string(32 * num_epochs) +
                                     "\n"
                                     "  init: " +
                                     GetParam().init.string() +
                                     "\n"
                                     "  order_file: " +
                                     GetParam().log.string() +
                                     "\n"
                                     "  val_interval: 10\n");
        const auto result = meshard({"train", path("ahmed.yaml"), "--nproc", std::to_string(num_ranks)});
        ASSERT_EQ(result.exit_code, 0) << result.err;

        std::istringstream own(content_of(path("run/metrics.jsonl")));
        for (std::string text; std::getline(own, text);) {
            const auto line = json::parse(text);
            if (line["phase"] == "train") losses_.push_back(line["loss"].get<double>());
            if (line["phase"] == "val") val_ = line["metrics"];
            if (line["phase"] == "test") test_ = line["metrics"];
        }
        ASSERT_EQ(losses_.size(), static_cast<std::size_t>(num_epochs));

        std::istringstream reference(content_of(GetParam().log.string()));
        for (std::string text; std::getline(reference, text);) {
            const auto line = json::parse(text);
            if (line.contains("train_loss")) expected_.push_back(line);
        }
        ASSERT_GE(expected_.size(), losses_.size());
    }

    void expect_loss(std::size_t epoch, double share) const
    {
        const auto expected = expected_[epoch - 1]["train_loss"].get<double>();
        EXPECT_NEAR(losses_[epoch - 1], expected, share * expected) << "epoch " << epoch;
    }

    /// Errors on bodies that were not trained on, after the last epoch.
    void expect_errors(double share) const
    {
        const auto& expected = expected_[losses_.size() - 1];
        for (const auto& [split, found] : {std::pair("val", val_), std::pair("test", test_)}) {
            for (const auto& [field, key] : {std::pair("pressure", "l2_p"), std::pair("wss", "l2_wss")}) {
                const auto error = expected[split][key].get<double>();
                EXPECT_NEAR(found[field]["rel_l2"].get<double>(), error, share * error) << field << " of " << split;
            }
        }
    }

    std::vector<double> losses_;
    std::vector<json> expected_;  // a line an epoch
    json val_, test_;
};

TEST_P(ReferenceRun, FirstEpochAgrees)
{
    train(1, 1);

    expect_loss(1, 1e-4);
    expect_errors(1e-3);
}

TEST_P(ReferenceRun, FirstAndTenthEpochAgreeOnTwoRanks)
{
    train(10, 2);

    expect_loss(1, 1e-4);
    expect_loss(10, 1e-2);
    expect_errors(2e-2);
}

INSTANTIATE_TEST_SUITE_P(All, ReferenceRun, testing::ValuesIn(test::training_fixtures()), test::NameOfFixture());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ReferenceRun);

// A clone has the reference's runs neither, since without their cases they say nothing.
TEST(ReferenceRunData, IsThere)
{
    if (test::training_fixtures().empty())
        GTEST_SKIP() << "the reference's training runs are not here (shared/fixtures/training)";
    if (!std::filesystem::exists(kCases)) GTEST_SKIP() << "the cases of the reference's runs are not here: " << kCases;
}

}  // namespace
}  // namespace meshard
