// SPDX-License-Identifier: Apache-2.0
#include "apps/evaluation/case_sums.h"
#include "apps/evaluation/evaluation.h"
#include "apps/evaluation/field_metrics.h"
#include "apps/evaluation/force_metrics.h"
#include "apps/program/command_line.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>

namespace meshard {
namespace {

double value_of(const Metrics& metrics, const std::string& name)
{
    const auto found = std::ranges::find(metrics, name, &Metrics::value_type::first);
    EXPECT_NE(found, metrics.end()) << name;
    return found == metrics.end() ? 0 : found->second;
}

TEST(FieldMetrics, AreThoseOfAHandMadeVectorField)
{
    const JudgedFields layout({{"p", "p", "kinematic"}, {"u", "u", "vector"}}, {1, 2});
    const auto truth = torch::tensor({{1.0, 3.0, 4.0}, {-2.0, 0.0, 1.0}}), prediction = torch::tensor({{2.0, 3.0, 2.0}, {-2.0, 1.0, 1.0}});
    const auto guess = torch::tensor({0.0, 1.0, 1.0});
    auto geometry = torch::zeros({2, kGeometryColumns}, torch::kDouble);
    geometry[0][6] = 2.0;
    geometry[1][6] = 1.0;

    const auto metrics = case_sums(prediction, truth, geometry, layout, guess, RankGroup()).metrics(layout);

    EXPECT_DOUBLE_EQ(value_of(metrics, "p.rel_l2"), std::sqrt(1.0 / 5));
    EXPECT_DOUBLE_EQ(value_of(metrics, "p.rel_l1"), 1.0 / 3);
    EXPECT_DOUBLE_EQ(value_of(metrics, "p.mae"), 0.5);
    EXPECT_DOUBLE_EQ(value_of(metrics, "p.rmse"), std::sqrt(0.5));
    EXPECT_DOUBLE_EQ(value_of(metrics, "p.rmse_over_max"), std::sqrt(0.5) / 2);
    EXPECT_DOUBLE_EQ(value_of(metrics, "p.rel_l2_area"), std::sqrt(2.0 / 6));
    EXPECT_DOUBLE_EQ(value_of(metrics, "p.r2"), 1 - 1.0 / 4.5);
    EXPECT_DOUBLE_EQ(value_of(metrics, "p.guess_rel_l2"), 1.0);
    EXPECT_DOUBLE_EQ(value_of(metrics, "u.rel_l2"), std::sqrt(5.0 / 26));
    EXPECT_DOUBLE_EQ(value_of(metrics, "u.mae"), 3.0 / 4);
    EXPECT_DOUBLE_EQ(value_of(metrics, "u.max_abs"), 2.0);
    EXPECT_DOUBLE_EQ(value_of(metrics, "u.0.rel_l2"), std::sqrt(1.0 / 9));
    EXPECT_DOUBLE_EQ(value_of(metrics, "u.guess_mae"), (2.0 + 3 + 1 + 0) / 4);
    const auto mag = std::sqrt(std::pow(std::sqrt(13.0) - 5, 2) + std::pow(std::sqrt(2.0) - 1, 2)) / std::sqrt(26.0);
    EXPECT_NEAR(value_of(metrics, "u.mag.rel_l2"), mag, 1e-12);
}

TEST(FieldMetrics, OfCoefficientsHaveBiasScatterAndRanks)
{
    const std::vector<double> truth{0.30, 0.32, 0.28}, predicted{0.31, 0.34, 0.26};

    const auto metrics = coefficient_metrics(predicted, truth, 0.30);

    EXPECT_NEAR(value_of(metrics, "mae"), 0.05 / 3, 1e-12);
    EXPECT_NEAR(value_of(metrics, "bias"), 0.01 / 3, 1e-12);
    EXPECT_NEAR(value_of(metrics, "std"), std::sqrt(0.0009 / 3 - std::pow(0.01 / 3, 2)), 1e-12);
    EXPECT_NEAR(value_of(metrics, "r2"), 1 - 0.0009 / 0.0008, 1e-9);
    EXPECT_NEAR(value_of(metrics, "spearman"), 1, 1e-12);
    EXPECT_NEAR(value_of(metrics, "pair_order"), 1, 1e-12);
    EXPECT_NEAR(value_of(metrics, "guess_mae"), 0.04 / 3, 1e-12);
    EXPECT_TRUE(std::isnan(value_of(coefficient_metrics(std::vector{0.3}, std::vector{0.3}, {}), "r2")));
}

TEST(FieldMetrics, GiveTiesTheMeanOfTheirRanks)
{
    // Ranks 1.5 1.5 3 4 and 1 2 3.5 3.5: Pearson's correlation of them by hand.
    EXPECT_NEAR(spearman(std::vector<double>{1, 1, 2, 3}, std::vector<double>{5, 6, 7, 7}), 4.0 / 4.5, 1e-12);
    EXPECT_TRUE(std::isnan(spearman(std::vector<double>{1, 1}, std::vector<double>{1, 2})));
}

TEST(ForceMetrics, FindSignsThemselves)
{
    ForceSums sums;
    sums.area = 6;
    sums.outward = -3;  // of a unit cube whose faces look inwards
    sums.true_pressure = {-2, 0, 1};
    sums.predicted_pressure = {-3, 0, 1};
    sums.true_shear = {-0.5, 0, 0};  // OpenFOAM's sign
    sums.predicted_shear = {-0.25, 0, 0};

    const auto found = coefficients(sums, {.drag = {1, 0, 0}, .lift = {0, 0, 1}, .scale = 2});

    EXPECT_DOUBLE_EQ(found.drag_true, 2 * (-2 + 0.5));
    EXPECT_DOUBLE_EQ(found.drag_predicted, 2 * (-3 + 0.25));
    EXPECT_DOUBLE_EQ(found.lift_true, 2 * 1);
}

TEST(Threshold, RefusesWhatIsNoBoundAndNumbersThatAreNotThere)
{
    const auto numbers =
        nlohmann::ordered_json::parse(R"({"splits": {"test": {"fields": {"p": {"rel_l2": {"mean": 0.5, "max": 0.7}}}, "cd": {"mae": 0.02}}}})");

    EXPECT_DOUBLE_EQ(Threshold("test.p.rel_l2>0.4").value_in(numbers), 0.5);
    EXPECT_DOUBLE_EQ(Threshold("test.p.rel_l2.max>0.4").value_in(numbers), 0.7);
    EXPECT_TRUE(Threshold("test.cd.mae>=0.02").is_broken_by(0.02));
    EXPECT_FALSE(Threshold("test.cd.mae>0.02").is_broken_by(0.02));
    EXPECT_THROW(Threshold("test.cd.mae"), UsageError);
    EXPECT_THROW(Threshold("test.cl.mae>1").value_in(numbers), UsageError);
}

}  // namespace
}  // namespace meshard
