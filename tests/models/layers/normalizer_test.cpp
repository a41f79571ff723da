// SPDX-License-Identifier: Apache-2.0
#include "models/layers/normalizer.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace meshard {
namespace {

TEST(ChannelStatistics, AreThoseOfAllRowsTogether)
{
    torch::manual_seed(3);
    const auto rows = torch::randn({97, 3}, torch::kDouble) * torch::tensor({1.0, 50.0, 1e-3}) + torch::tensor({0.0, 1e5, -2.0});
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

TEST(ChannelStatistics, TakeOneForAChannelThatNeverChanges)
{
    ChannelStatistics statistics;
    statistics.add(torch::full({5, 1}, 7.0));

    EXPECT_EQ(statistics.normalizer().std.item<float>(), 1.0F);
}

TEST(ChannelStatistics, RefuseOtherChannelsAndTooFewRows)
{
    ChannelStatistics statistics;
    statistics.add(torch::zeros({1, 2}));

    EXPECT_TRUE(throws_with<InvalidInput>("3 channels after tensors of 2", [&] { statistics.add(torch::zeros({4, 3})); }));
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
