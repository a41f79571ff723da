// SPDX-License-Identifier: Apache-2.0
#include "models/layers/metrics.h"
#include "tests/support/fixture_cases.h"
#include "tests/support/fixture_tensors.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <map>
#include <vector>

namespace meshard {
namespace {

TEST(RelativeL2, IsTheNormOfTheErrorOverTheNormOfTheTarget)
{
    const auto target = torch::tensor({{3.0, 0.0}, {0.0, 4.0}});
    const auto prediction = torch::tensor({{3.0, 1.0}, {0.0, 4.0}});

    EXPECT_DOUBLE_EQ(relative_l2(prediction, target), 0.2);
    EXPECT_EQ(relative_l2(target, target), 0.0);
    EXPECT_NEAR(relative_l2(prediction * 1e-12, target * 1e-12), 0.2, 1e-12) << "in other units";
    EXPECT_EQ(relative_l2(torch::zeros(3), torch::zeros(3)), 0.0);
}

TEST(RelativeL2, IsFiniteWhereTheTargetIsZero)
{
    // sqrt(sum of the error's squares / 1e-8)
    EXPECT_NEAR(relative_l2(torch::full({4}, 3e-4, torch::kDouble), torch::zeros({4}, torch::kDouble)), 6.0, 1e-12);
    EXPECT_NEAR(relative_l2(torch::ones({9, 1}), torch::zeros({9, 1})), 3e4, 1e-8);
}

TEST(RelativeL2, SumsInDoublePrecision)
{
    const auto target = torch::full({1 << 20}, 1.0F);

    EXPECT_NEAR(relative_l2(target + 1.0F / 1024, target), 1.0 / 1024, 1e-15);
}

class ErrorMeasures : public testing::TestWithParam<test::FixtureCase> {};

/// Of each column.
std::vector<double> relative_l2s(const at::Tensor& prediction, const at::Tensor& target)
{
    std::vector<double> errors;
    for (std::int64_t i = 0; i < target.size(1); ++i)
        errors.push_back(relative_l2(prediction.select(1, i), target.select(1, i)));
    return errors;
}

std::vector<double> squares(std::vector<double> values)
{
    for (auto& value : values) value *= value;
    return values;
}

TEST_P(ErrorMeasures, EqualTheReference)
{
    const auto tensors = test::read_tensors(GetParam().arrays_path());
    const auto prediction = tensors.at("input.pred"), target = tensors.at("input.target");
    const auto rows = tensors.at("input.mask").select(1, 0).nonzero().select(1, 0);
    const auto roots = tensors.at("input.weights").to(at::kDouble).sqrt();
    const auto shear = prediction.narrow(1, 1, 3), true_shear = target.narrow(1, 1, 3);
    const std::map<std::string, std::vector<double>> found{
        {"relative_l2.all", {relative_l2(prediction, target)}},
        {"relative_l2.per_channel", relative_l2s(prediction, target)},
        {"relative_l2.per_channel_masked",
         relative_l2s(prediction.index_select(0, rows), target.index_select(0, rows))},
        {"relative_l2.per_channel_weighted", relative_l2s(prediction * roots, target * roots)},
        {"relative_l2.per_point", relative_l2s(prediction.t(), target.t())},
        {"relative_l2.zero_target", relative_l2s(prediction, torch::zeros_like(target))},
        {"relative_mse.all", squares({relative_l2(prediction, target)})},
        {"relative_mse.per_channel", squares(relative_l2s(prediction, target))},
        {"recipe.l2_per_channel", relative_l2s(prediction, target)},
        {"recipe.l2_shear_vector", {relative_l2(shear, true_shear)}},
        {"recipe.l2_shear_magnitude",
         {relative_l2(shear.to(at::kDouble).norm(2, 1), true_shear.to(at::kDouble).norm(2, 1))}},
    };
    for (const auto& [name, expected] : tensors) {
        // Sums of absolute errors are none of meshard's measures.
        if (name.starts_with("input.") || name.starts_with("recipe.l1_") || name.starts_with("recipe.mae_")) continue;
        ASSERT_TRUE(found.contains(name)) << name << " has no counterpart in this test";
        ASSERT_EQ(static_cast<std::int64_t>(found.at(name).size()), expected.numel()) << name;
        for (std::int64_t i = 0; i < expected.numel(); ++i) {
            const auto value = expected.view({-1})[i].item<double>();
            EXPECT_NEAR(found.at(name)[i], value, 1e-6 * value) << name << ' ' << i;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(All, ErrorMeasures, testing::ValuesIn(test::fixture_cases({"error measures"})),
                         test::NameOfFixture());

TEST(MeanSquaredError, IsTheMeanOverPointsAndChannels)
{
    const auto target = torch::zeros({1, 2, 2});
    const auto prediction = torch::tensor({{{1.0F, 0.0F}, {0.0F, 3.0F}}});

    EXPECT_FLOAT_EQ(mean_squared_error(prediction, target).item<float>(), 2.5F);
}

}  // namespace
}  // namespace meshard
