// SPDX-License-Identifier: Apache-2.0
#include "models/metrics.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/fixture_cases.h"

namespace meshard {
namespace {

TEST(RelativeL2, IsTheNormOfTheErrorOverTheNormOfTheTarget)
{
    const auto target = torch::tensor({{3.0, 0.0}, {0.0, 4.0}});
    const auto prediction = torch::tensor({{3.0, 1.0}, {0.0, 4.0}});

    EXPECT_DOUBLE_EQ(relative_l2(prediction, target), 0.2);
    EXPECT_EQ(relative_l2(target, target), 0.0);
    EXPECT_EQ(relative_l2(torch::zeros(3), torch::zeros(3)), 0.0);
}

TEST(RelativeL2, SumsInDoublePrecision)
{
    const auto target = torch::full({1 << 20}, 1.0F);

    EXPECT_NEAR(relative_l2(target + 1.0F / 1024, target), 1.0 / 1024, 1e-15);
}

TEST(RelativeL2, EqualsTheReference)
{
    bool found = false;
    for (const auto& fixture : test::fixture_cases()) {
        if (fixture.name != "error_measures") continue;
        found = true;
        const auto tensors = fixture.tensors();
        const auto expected = tensors.at("relative_l2.all").item<double>();
        EXPECT_NEAR(relative_l2(tensors.at("input.pred"), tensors.at("input.target")), expected, 1e-6 * expected);
    }
    if (!found) GTEST_SKIP() << "the fixture error_measures is not here";
}

TEST(MeanSquaredError, IsTheMeanOverPointsAndChannels)
{
    const auto target = torch::zeros({1, 2, 2});
    const auto prediction = torch::tensor({{{1.0F, 0.0F}, {0.0F, 3.0F}}});

    EXPECT_FLOAT_EQ(mean_squared_error(prediction, target).item<float>(), 2.5F);
}

}  // namespace
}  // namespace meshard
