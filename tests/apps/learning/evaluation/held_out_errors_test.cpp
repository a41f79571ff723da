// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/evaluation/held_out_errors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace meshard {
namespace {

std::map<std::string, double> by_case(const std::vector<double>& errors)
{
    std::map<std::string, double> all;
    for (const auto error : errors) all[std::to_string(all.size())] = error;
    return all;
}

TEST(Intervals, AreTheErrorOfTheRankThatTheirProbabilityAsksFor)
{
    std::vector<double> errors;
    for (int i = 1; i < 9; ++i) errors.push_back(0.1 * (9 - i));
    EXPECT_FALSE(interval_of(by_case(errors))) << "8 errors say nothing about 90 %";
    EXPECT_FALSE(interval_of({}));
    errors.push_back(-0.9);
    EXPECT_EQ(interval_of(by_case(errors)), 0.9);
    for (int i = 10; i < 20; ++i) errors.push_back(0.1 * i);
    EXPECT_NEAR(*interval_of(by_case(errors)), 1.8, 1e-12);  // the 18th of 19
}

/// Of n errors and one more, all drawn alike, the one more is at most the k-th smallest with probability k / (n + 1).
TEST(Intervals, HoldAsManyFurtherCasesAsTheyShall)
{
    std::mt19937 generator(1);
    std::lognormal_distribution<double> draw(0, 1.5);
    constexpr int kDraws = 20000, kCases = 14;  // 14 of 15: 0.933
    int num_inside = 0;
    for (int i = 0; i < kDraws; ++i) {
        std::vector<double> errors;
        for (int k = 0; k < kCases; ++k) errors.push_back(draw(generator));
        num_inside += draw(generator) <= *interval_of(by_case(errors));
    }
    const auto expected = 14.0 / 15;
    EXPECT_NEAR(num_inside / double(kDraws), expected, 4 * std::sqrt(expected * (1 - expected) / kDraws));
}

EvaluatedCase judged(double predicted, double truth, std::optional<double> of_table, const std::string& id)
{
    EvaluatedCase one{.source = {id, {}, {}}, .split = "val"};
    one.metrics = {{"p.rel_l2", 0.1}, {"p.mae", 0.1}, {"p.guess_rel_l2", 1.0}};
    one.forces = Coefficients{.all = {{"Cd", truth, predicted}, {"Cl", -truth, 0}}};
    one.of_table[0] = of_table;
    return one;
}

TEST(HeldOutErrors, AreAgainstTheTableWhereItHasCoefficients)
{
    Evaluation evaluation;
    evaluation.cases = {judged(0.30, 0.25, {}, "a"), judged(0.40, 0.42, {}, "b"), judged(0.1, 0.9, {}, "c")};
    evaluation.cases.back().split = "test";
    auto errors = HeldOutErrors::of_split(evaluation, "val");
    ASSERT_EQ(errors.drag.size(), 2u);
    EXPECT_NEAR(errors.drag["a"], 0.05, 1e-12);
    EXPECT_NEAR(errors.drag["b"], -0.02, 1e-12);
    EXPECT_NEAR(errors.lift["b"], 0.42, 1e-12);

    evaluation.cases = {judged(0.30, 0.25, 0.33, "a"), judged(0.40, 0.42, 0.45, "b")};
    auto of_table = HeldOutErrors::of_split(evaluation, "val");
    EXPECT_NEAR(of_table.drag["a"], -0.03, 1e-12);
    EXPECT_NEAR(of_table.drag["b"], -0.05, 1e-12);
    EXPECT_NEAR(of_table.lift["a"], 0.25, 1e-12) << "the table has no lift";
    EXPECT_TRUE(HeldOutErrors::of_split(evaluation, "test").drag.empty());
}

TEST(HeldOutErrors, OfSeveralModelsCountACaseOnceByTheErrorOfTheMeanOfThoseJudgedByIt)
{
    const std::vector<HeldOutErrors> models{{{{"a", 0.3}, {"b", 0.1}}, {}}, {{{"a", -0.1}, {"c", 0.2}}, {{"c", 1}}}};

    const auto both = HeldOutErrors::of_mean(models);

    ASSERT_EQ(both.drag.size(), 3u);
    EXPECT_NEAR(both.drag.at("a"), 0.1, 1e-12);  // of (0.3 - 0.1) / 2
    EXPECT_NEAR(both.drag.at("b"), 0.1, 1e-12);
    EXPECT_NEAR(both.drag.at("c"), 0.2, 1e-12);
    EXPECT_EQ(both.lift.size(), 1u);

    const HeldOutErrors of_four{by_case({0.1, 0.2, 0.3, 0.4}), {}};
    const std::vector same_cases(3, of_four);
    EXPECT_FALSE(interval_of(HeldOutErrors::of_mean(same_cases).drag)) << "three runs judged by 4 cases know 4 errors";
}

TEST(HeldOutErrors, ShowHowManyCasesOfASplitLieWithinTheInterval)
{
    Evaluation evaluation;
    evaluation.cases = {judged(0.30, 0.25, {}, "a"), judged(0.40, 0.42, {}, "b"), judged(0.5, 0.8, {}, "c")};
    evaluation.interval[0] = 0.1;
    const auto json = to_json(evaluation);
    EXPECT_NEAR(json["splits"]["val"]["cd"]["coverage"].get<double>(), 2.0 / 3, 1e-12);
    EXPECT_EQ(json["splits"]["val"]["cd"]["interval"].get<double>(), 0.1);
    EXPECT_FALSE(json["splits"]["val"]["cl"].contains("interval"));
    EXPECT_NE(to_text(evaluation).find("cd: 67 % lie within ±0.1 of the prediction, expected are 90 %"),
              std::string::npos)
        << to_text(evaluation);
}

}  // namespace
}  // namespace meshard
