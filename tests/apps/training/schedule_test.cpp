// SPDX-License-Identifier: Apache-2.0
#include "apps/training/schedule.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

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

TEST(LearningRate, FollowsItsFormula)
{
    TrainingConfig config;
    config.learning_rate = 2.0;
    config.min_learning_rate = 0.5;
    config.num_epochs = 10;  // of ten steps
    config.gamma = 0.5;
    config.step_epochs = 3;
    config.power = 2;
    const auto rate = [&](const char* scheduler, std::int64_t step) {
        config.scheduler = scheduler;
        return learning_rate(config, step, 100);
    };

    EXPECT_DOUBLE_EQ(rate("step", 29), 2.0);
    EXPECT_DOUBLE_EQ(rate("step", 30), 1.0);
    EXPECT_DOUBLE_EQ(rate("step", 99), 0.5) << "a quarter is below the lowest";
    EXPECT_DOUBLE_EQ(rate("exponential", 9), 2.0);
    EXPECT_DOUBLE_EQ(rate("exponential", 15), 1.0);
    EXPECT_DOUBLE_EQ(rate("linear", 50), 1.25);
    EXPECT_DOUBLE_EQ(rate("polynomial", 50), 0.875);
    EXPECT_DOUBLE_EQ(rate("plateau", 99), 2.0);
    config.warmup_steps = 20;
    EXPECT_DOUBLE_EQ(rate("linear", 9), 1.0);
    EXPECT_DOUBLE_EQ(rate("linear", 60), 1.25);
}

// Of torch.optim.lr_scheduler.OneCycleLR: half cosines between the ends of its two phases, at steps 0.3 T - 1 and T - 1.
TEST(LearningRate, GoesUpAndDownInOneCycle)
{
    TrainingConfig config;
    config.learning_rate = 1.0;
    config.scheduler = "one_cycle";
    constexpr std::int64_t kSteps = 100;

    EXPECT_NEAR(learning_rate(config, 0, kSteps), 0.04, 1e-15);
    EXPECT_NEAR(learning_rate(config, 29, kSteps), 1.0, 1e-15);
    EXPECT_NEAR(learning_rate(config, 64, kSteps), (1 + 4e-6) / 2, 1e-12);
    EXPECT_NEAR(learning_rate(config, 99, kSteps), 4e-6, 1e-15);
    EXPECT_NEAR(first_beta_in_cycle(0, kSteps), 0.95, 1e-15);
    EXPECT_NEAR(first_beta_in_cycle(29, kSteps), 0.85, 1e-15);
    EXPECT_NEAR(first_beta_in_cycle(64, kSteps), 0.9, 1e-12);
    EXPECT_NEAR(first_beta_in_cycle(99, kSteps), 0.95, 1e-15);
    for (std::int64_t t = 0; t < 3; ++t) EXPECT_TRUE(learning_rate(config, t, 3) > 0 && learning_rate(config, t, 3) <= 1) << "few steps";
    EXPECT_GT(learning_rate(config, 0, 1), 0);
}

TEST(Plateau, LowersTheRateWhereNothingGetsBetter)
{
    TrainingConfig config;
    config.gamma = 0.1;
    config.plateau_patience = 2;
    config.threshold = 0.01;
    Plateau plateau;
    std::vector<int> changes;
    for (const double error : {1.0, 0.995, 0.98, 0.98, 0.975, 0.972, 0.98, 0.98, 0.5}) changes.push_back(plateau.check(error, config));

    EXPECT_EQ(changes, (std::vector<int>{0, 0, 0, 0, 0, 1, 0, 0, 0}));
    EXPECT_DOUBLE_EQ(plateau.factor, 0.1);
    EXPECT_EQ(plateau.best, 0.5);
}

TEST(EarlyStop, EndsAfterAsManyChecksWithoutABetterOne)
{
    TrainingConfig config;
    EarlyStop stop;
    for (int i = 0; i < 9; ++i) EXPECT_FALSE(stop.check(1.0, config)) << "never unless asked for";
    config.stop_patience = 2;
    config.stop_min_delta = 0.1;
    stop = {};
    std::vector<int> ends;
    for (const double error : {1.0, 0.95, 0.85, 0.8, 0.76}) ends.push_back(stop.check(error, config));

    EXPECT_EQ(ends, (std::vector<int>{0, 0, 0, 0, 1}));
    EXPECT_TRUE(stop.is_over(config));
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

TEST(CaseOrder, TakesTheSharesOfDataSets)
{
    std::vector<CaseSource> cases(12);
    for (int i = 0; i < 12; ++i) cases[i].set = i < 3 ? "small" : "large";
    std::vector<DataSetConfig> sets(2);
    sets[0].name = "small";
    sets[1].name = "large";
    sets[0].share = sets[1].share = 5;
    TrainingConfig config;
    const CaseOrder order(config, 5, cases, sets);
    EXPECT_EQ(order.cases_of_sets(), (Order{6, 6}));

    std::map<std::int64_t, std::vector<std::int64_t>> times;  // by case
    for (int epoch = 1; epoch <= 3; ++epoch) {
        const auto taken = order.of_epoch(epoch), at_time = order.times_of_epoch(epoch);
        ASSERT_EQ(taken.size(), 12);
        EXPECT_EQ(std::ranges::count_if(taken, [](auto i) { return i < 3; }), 6);
        EXPECT_FALSE(std::ranges::is_sorted(taken, {}, [](auto i) { return i < 3; })) << "the sets are not mixed";
        for (std::size_t i = 0; i < taken.size(); ++i) times[taken[i]].push_back(at_time[i]);
    }
    for (auto& [index, of_case] : times) {
        std::ranges::sort(of_case);
        EXPECT_EQ(of_case, index < 3 ? (Order{1, 2, 3, 4, 5, 6}) : (Order{1, 2})) << index;
    }
    EXPECT_EQ(times.size(), 12);
    EXPECT_EQ(order.of_epoch(2), CaseOrder(config, 5, cases, sets).of_epoch(2));

    sets[0].share = 1e-6;
    EXPECT_EQ(CaseOrder(config, 5, cases, sets).cases_of_sets(), (Order{1, 11}));
    sets[0].share = 1;
    EXPECT_EQ(CaseOrder(config, 5, cases, sets).cases_of_sets(), (Order{2, 10}));
    sets[0].share = sets[1].share = 0;
    EXPECT_EQ(CaseOrder(config, 5, cases, sets).of_epoch(2), CaseOrder(config, 5, cases).of_epoch(2));
    EXPECT_EQ(CaseOrder(config, 5, cases, sets).times_of_epoch(2), Order(12, 2));
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
