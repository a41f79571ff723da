// SPDX-License-Identifier: Apache-2.0
#include "apps/training/schedule.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace meshard {
namespace {

std::vector<CaseSource> three_cases()
{
    return {{"a", {}, {}}, {"b", {}, {}}, {"c", {}, {}}};
}

using Order = std::vector<std::int64_t>;

TEST(LearningRate, RisesInALineAndFallsAsHalfACosine)
{
    TrainingConfig config;
    config.learning_rate = 2.0;
    config.min_learning_rate = 1.0;
    config.scheduler = "cosine";
    config.warmup_steps = 4;

    EXPECT_DOUBLE_EQ(learning_rate(config, 0, 104), 0.5);
    EXPECT_DOUBLE_EQ(learning_rate(config, 3, 104), 2.0);
    EXPECT_DOUBLE_EQ(learning_rate(config, 4, 104), 2.0);
    EXPECT_DOUBLE_EQ(learning_rate(config, 54, 104), 1.5);
    EXPECT_NEAR(learning_rate(config, 104, 104), 1.0, 1e-12);
}

TEST(LearningRate, StaysWhereItIsWhenConstant)
{
    TrainingConfig config;
    config.learning_rate = 0.1;
    config.scheduler = "constant";

    EXPECT_EQ(learning_rate(config, 0, 10), 0.1);
    EXPECT_EQ(learning_rate(config, 9, 10), 0.1);
}

TEST(CaseOrder, IsAnotherPermutationInEveryEpoch)
{
    std::vector<CaseSource> cases(30);
    TrainingConfig config;
    const CaseOrder order(config, 5, cases);

    EXPECT_NE(order.of_epoch(1), order.of_epoch(2));
    EXPECT_EQ(order.of_epoch(1), CaseOrder(config, 5, cases).of_epoch(1));
    EXPECT_NE(order.of_epoch(1), CaseOrder(config, 6, cases).of_epoch(1));
    config.shuffle = false;
    EXPECT_EQ(CaseOrder(config, 5, three_cases()).of_epoch(2), (Order{0, 1, 2}));
}

TEST(CaseOrder, FollowsAFile)
{
    const TemporaryFolder folder;
    write_bytes(folder / "order.jsonl",
                "{\"comment\": 1}\n{\"epoch\": 1, \"order\": [\"c\", \"a\", \"b\"]}\n{\"epoch\": 2, \"order\": [\"a\", \"b\", \"c\"]}\n");
    TrainingConfig config;
    config.order_file = folder / "order.jsonl";

    const CaseOrder order(config, 0, three_cases());

    EXPECT_EQ(order.of_epoch(1), (Order{2, 0, 1}));
    EXPECT_EQ(order.of_epoch(2), (Order{0, 1, 2}));
    EXPECT_TRUE(throws_with<InvalidInput>("ends after epoch 2", [&] { order.of_epoch(3); }));
}

TEST(CaseOrder, RefusesAFileThatDoesNotFit)
{
    const TemporaryFolder folder;
    TrainingConfig config;
    config.order_file = folder / "order.jsonl";
    const auto refuses = [&](std::string_view content, std::string_view text) {
        write_bytes(folder / "order.jsonl", content);
        return throws_with<Error>(text, [&] { CaseOrder(config, 0, three_cases()); });
    };

    EXPECT_TRUE(refuses("{\"epoch\": 1, \"order\": [\"a\", \"b\"]}\n", "orders 2 cases, and 3 train"));
    EXPECT_TRUE(refuses("{\"epoch\": 1, \"order\": [\"a\", \"b\", \"b\"]}\n", "case \"b\" is no training case, or stands there twice"));
    EXPECT_TRUE(refuses("{\"epoch\": 2, \"order\": [\"a\", \"b\", \"c\"]}\n", "epoch 2 is out of turn"));
    EXPECT_TRUE(refuses("nonsense\n", "line 1 is no JSON"));
    config.order_file = folder / "absent";
    EXPECT_TRUE(throws_with<IoError>("cannot be read", [&] { CaseOrder(config, 0, three_cases()); }));
}

}  // namespace
}  // namespace meshard
