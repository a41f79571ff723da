// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/training/schedule.h"

#include <gtest/gtest.h>

namespace meshard {
namespace {

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

// Of torch.optim.lr_scheduler.OneCycleLR: half cosines between the ends of its two phases, at steps 0.3 T - 1 and T
// - 1.
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
    for (std::int64_t t = 0; t < 3; ++t)
        EXPECT_TRUE(learning_rate(config, t, 3) > 0 && learning_rate(config, t, 3) <= 1) << "few steps";
    EXPECT_GT(learning_rate(config, 0, 1), 0);
}

TEST(Plateau, LowersTheRateWhereNothingGetsBetter)
{
    TrainingConfig config;
    config.gamma = 0.1;
    config.plateau_patience = 2;
    config.threshold = 0.01;
    PlateauState plateau;
    std::vector<int> changes;
    for (const double error : {1.0, 0.995, 0.98, 0.98, 0.975, 0.972, 0.98, 0.98, 0.5})
        changes.push_back(lowers_rate(plateau, error, config));

    EXPECT_EQ(changes, (std::vector<int>{0, 0, 0, 0, 0, 1, 0, 0, 0}));
    EXPECT_DOUBLE_EQ(plateau.factor, 0.1);
    EXPECT_EQ(plateau.best, 0.5);
}

TEST(EarlyStop, EndsAfterAsManyChecksWithoutABetterOne)
{
    TrainingConfig config;
    EarlyStopState stop;
    for (int i = 0; i < 9; ++i) EXPECT_FALSE(ends_run(stop, 1.0, config)) << "never unless asked for";
    config.stop_patience = 2;
    config.stop_min_delta = 0.1;
    stop = {};
    std::vector<int> ends;
    for (const double error : {1.0, 0.95, 0.85, 0.8, 0.76}) ends.push_back(ends_run(stop, error, config));

    EXPECT_EQ(ends, (std::vector<int>{0, 0, 0, 0, 1}));
    EXPECT_TRUE(is_over(stop, config));
}

}  // namespace
}  // namespace meshard
