// SPDX-License-Identifier: Apache-2.0
#include "models/layers/normalizer.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"

#include <gtest/gtest.h>
#include <torch/types.h>

namespace meshard {
namespace {

TEST(ChannelStatistics, AreThoseOfAllRowsTogether)
{
    torch::manual_seed(3);
    const auto rows =
        torch::randn({97, 3}, torch::kDouble) * torch::tensor({1.0, 50.0, 1e-3}) + torch::tensor({0.0, 1e5, -2.0});
    ChannelStatistics statistics;
    statistics.add(rows.slice(0, 0, 1));
    statistics.add(rows.slice(0, 1, 60));
    statistics.add(rows.slice(0, 60, 60));
    statistics.add(rows.slice(0, 60, 97));

    const auto normalizer = statistics.normalizer();

    EXPECT_EQ(statistics.num_rows(), 97);
    EXPECT_TRUE(torch::allclose(normalizer.mean.to(torch::kDouble), rows.mean(0), 1e-6, 1e-9));
    EXPECT_TRUE(torch::allclose(normalizer.std.to(torch::kDouble), rows.std(0, true), 1e-6, 1e-12));
}

TEST(ChannelStatistics, DivideByOneLessThanTheRows)
{
    ChannelStatistics statistics;
    statistics.add(torch::tensor({{1.0F}, {3.0F}}));

    const auto normalizer = statistics.normalizer();

    EXPECT_FLOAT_EQ(normalizer.mean.item<float>(), 2.0F);
    EXPECT_FLOAT_EQ(normalizer.std.item<float>(), std::sqrt(2.0F));
}

TEST(ChannelStatistics, LeaveAChannelThatNeverChangesItsUnitAndItsMean)
{
    ChannelStatistics statistics;
    for (int i = 0; i < 3; ++i) statistics.add(torch::full({5, 2}, 0.1F));  // whose mean in double precision is rounded
    const auto normalizer = statistics.normalizer();

    const auto x = torch::tensor({{0.1F, 0.1F}, {0.6F, -3.0F}});
    EXPECT_TRUE(torch::allclose(normalizer.normalize(x), torch::tensor({{0.0F, 0.0F}, {0.5F, -3.1F}}), 1e-6, 1e-6));
    EXPECT_TRUE(torch::equal(normalizer.denormalize(x), torch::full({2, 2}, 0.1F)));
    const std::vector<std::pair<std::int64_t, std::int64_t>> vectors{{0, 2}};
    statistics = ChannelStatistics();
    statistics.add(torch::zeros({5, 2}));
    EXPECT_TRUE(torch::equal(statistics.normalizer(vectors).denormalize(x), torch::zeros({2, 2})));
}

TEST(ChannelStatistics, OfVectorsAreOneRootMeanSquareAndNoMean)
{
    torch::manual_seed(3);
    const auto rows = torch::randn({97, 5}, torch::kDouble) * torch::tensor({1.0, 50.0, 1e-3, 2.0, 0.5}) +
                      torch::tensor({0.0, 7.0, -2.0, 1.0, 9.0});
    ChannelStatistics statistics;
    statistics.add(rows.slice(0, 0, 40));
    statistics.add(rows.slice(0, 40, 97));

    const std::vector<std::pair<std::int64_t, std::int64_t>> vectors{{1, 3}};
    const auto normalizer = statistics.normalizer(vectors), plain = statistics.normalizer();

    const auto expected = rows.narrow(1, 1, 3).square().mean().sqrt().item<double>();
    for (int c = 1; c < 4; ++c) {
        EXPECT_EQ(normalizer.mean[c].item<float>(), 0);
        EXPECT_NEAR(normalizer.std[c].item<double>(), expected, 1e-6 * expected);
    }
    for (const int c : {0, 4}) {
        EXPECT_EQ(normalizer.mean[c].item<float>(), plain.mean[c].item<float>());
        EXPECT_EQ(normalizer.std[c].item<float>(), plain.std[c].item<float>());
    }
    // A vector that turns stays as long.
    const auto turn = torch::tensor({0.6, -0.8, 0.0, 0.8, 0.6, 0.0, 0.0, 0.0, 1.0}, torch::kFloat).view({3, 3});
    const auto vector = torch::tensor({3.0F, -1.0F, 2.0F});
    const auto scaled = [&](const at::Tensor& v) {
        return (v - normalizer.mean.narrow(0, 1, 3)) / normalizer.std.narrow(0, 1, 3);
    };
    EXPECT_TRUE(torch::allclose(scaled(turn.mv(vector)), turn.mv(scaled(vector)), 1e-6, 1e-7));
}

TEST(ChannelStatistics, OfMappedRowsFollowFromThoseOfTheRows)
{
    torch::manual_seed(5);
    const auto rows = torch::randn({50, 2}, torch::kDouble) + torch::tensor({101325.0, 3.0}, torch::kDouble);
    const auto shift = torch::tensor({101325.0F, 0.0F}), scale = torch::tensor({612.5F, 0.5F});
    ChannelStatistics statistics, expected;
    statistics.add(rows);
    expected.add((rows - shift) / scale);

    const auto found = statistics.mapped(shift, scale);

    EXPECT_EQ(found.num_rows(), 50);
    for (int c = 0; c < 2; ++c) {
        EXPECT_NEAR(found.mean()[c], expected.mean()[c], 1e-9);
        EXPECT_NEAR(found.squared_differences()[c], expected.squared_differences()[c],
                    1e-9 * expected.squared_differences()[c]);
    }
    EXPECT_EQ(ChannelStatistics().mapped(shift, scale).num_rows(), 0);
}

TEST(ChannelStatistics, RefuseOtherChannelsAndTooFewRows)
{
    ChannelStatistics statistics;
    statistics.add(torch::zeros({1, 2}));

    EXPECT_TRUE(
        throws_with<InvalidInput>("3 channels after tensors of 2", [&] { statistics.add(torch::zeros({4, 3})); }));
    EXPECT_TRUE(throws_with<InvalidInput>("(points, channels)", [&] { statistics.add(torch::zeros({4})); }));
    EXPECT_TRUE(throws_with<InvalidInput>("at least two rows", [&] { statistics.normalizer(); }));
}

TEST(Normalizer, ComesBackToWhereItBegan)
{
    const Normalizer normalizer{torch::tensor({1.0F, -4.0F}), torch::tensor({2.0F, 0.5F})};
    const auto x = torch::tensor({{3.0F, -4.0F}, {1.0F, -3.5F}});

    EXPECT_TRUE(torch::equal(normalizer.normalize(x), torch::tensor({{1.0F, 0.0F}, {0.0F, 1.0F}})));
    EXPECT_TRUE(torch::equal(normalizer.denormalize(normalizer.normalize(x)), x));
}

}  // namespace
}  // namespace meshard
