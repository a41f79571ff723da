// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/training/rank_balance.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace meshard {
namespace {

/// Seconds that ranks with these speeds take for their shares.
std::vector<double> seconds(const Shares& shares, const std::vector<double>& speeds)
{
    std::vector<double> all;
    for (std::size_t r = 0; r < shares.size(); ++r) all.push_back(shares[r] / speeds[r]);
    return all;
}

TEST(BalancedShares, AreThoseOfTheSpeeds)
{
    const std::vector<double> speeds{2, 1, 1};
    const Shares equal(3, 1.0 / 3);
    const auto found = balanced_shares(equal, seconds(equal, speeds));
    const Shares expected{0.5, 0.25, 0.25};
    for (std::size_t r = 0; r < 3; ++r) EXPECT_NEAR(found[r], expected[r], 1e-12);
    EXPECT_EQ(balanced_shares(found, seconds(found, speeds)), found) << "they stay where all take the same time";
}

TEST(BalancedShares, StayWhereTheSlowestIsNearTheMean)
{
    const Shares shares{0.6, 0.4};
    EXPECT_EQ(balanced_shares(shares, std::vector<double>{1.09, 0.91}), shares);
    EXPECT_NE(balanced_shares(shares, std::vector<double>{1.11, 0.89}), shares);
}

TEST(BalancedShares, LeaveARankThatHangsSomeRows)
{
    for (const auto slow : {1e3, 1e9}) {
        const auto found = balanced_shares({0.5, 0.5}, std::vector<double>{1, slow});
        EXPECT_GT(found[1], 0.02);
        EXPECT_NEAR(found[0] + found[1], 1, 1e-12);
    }
    const auto found = balanced_shares({0.5, 0.5}, std::vector<double>{0, 1});
    EXPECT_TRUE(std::isfinite(found[0]) && found[1] > 0.02);
}

TEST(RankBalance, BalancesEachDataGroupByItsOwnRanks)
{
    run_ranks(4, [](const std::shared_ptr<const DeviceMesh>& ranks) {
        RankBalance balance(2, 2);
        const std::vector<double> speeds{1, 3, 5, 5};
        const auto rank = ranks->all().rank();
        balance.add_step(1e6);  // the first step of all does not count
        for (int step = 0; step < 4; ++step) {
            balance.add_step(0.5 / speeds[rank]);
            EXPECT_FALSE(balance.update(ranks->all())) << "too few steps";
        }
        balance.add_step(0.5 / speeds[rank]);
        EXPECT_TRUE(balance.update(ranks->all()));
        EXPECT_NEAR(balance.of_group(0)[0], 0.25, 1e-12);
        EXPECT_NEAR(balance.of_group(0)[1], 0.75, 1e-12);
        EXPECT_EQ(balance.of_group(1), (Shares{0.5, 0.5}));

        RankBalance resumed(2, 2);
        EXPECT_TRUE(resumed.go_on_with(balance.shares()));
        EXPECT_EQ(resumed.shares(), balance.shares());
        EXPECT_FALSE(resumed.go_on_with({0.1, 0.9}));
        EXPECT_EQ(resumed.shares(), balance.shares()) << "those of two ranks are left aside";
        RankBalance one_group(1, 4);
        EXPECT_FALSE(one_group.go_on_with(balance.shares()));
        EXPECT_EQ(one_group.shares(), Shares(4, 0.25)) << "those of two groups are left aside";
    });
}

TEST(RankBalance, StaysWhereNoBetterSharesAreAttained)
{
    run_ranks(2, [](const std::shared_ptr<const DeviceMesh>& ranks) {
        RankBalance balance(1, 2, [](const Shares& wanted) {
            const auto quarters = std::clamp(std::round(4 * wanted[0]), 1.0, 3.0);
            return Shares{quarters / 4, 1 - quarters / 4};
        });
        const auto rank = ranks->all().rank();
        const auto measure = [&] {
            for (int step = 0; step < 6; ++step) balance.add_step(balance.shares()[rank] / (rank == 0 ? 1 : 9));
            return balance.update(ranks->all());
        };
        EXPECT_TRUE(measure());
        EXPECT_EQ(balance.shares(), (Shares{0.25, 0.75}));
        EXPECT_FALSE(measure()) << "a tenth is the least that the first rank should have";
        EXPECT_TRUE(balance.go_on_with({0.6, 0.4}));
        EXPECT_EQ(balance.shares(), (Shares{0.5, 0.5}));
    });
}

}  // namespace
}  // namespace meshard
