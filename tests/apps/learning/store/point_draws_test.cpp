// SPDX-License-Identifier: Apache-2.0
// The order in which rows are stored, and which of them a step takes: bijections, quotas, no row twice before all were
// there.
#include "apps/learning/store/point_draws.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

namespace meshard {
namespace {

TEST(KeyedPermutation, IsABijectionWithItsInverse)
{
    for (const std::uint64_t size : {1, 2, 3, 1000, (1 << 16) + 1}) {
        const KeyedPermutation permutation(size, 99);
        std::vector<bool> seen(size);
        for (std::uint64_t place = 0; place < size; ++place) {
            const auto number = permutation(place);
            ASSERT_LT(number, size);
            EXPECT_FALSE(seen[number]) << size;
            seen[number] = true;
            EXPECT_EQ(permutation.place_of(number), place);
        }
    }
}

TEST(StoredOrder, IsABijectionOfBlocks)
{
    for (const std::int64_t num_rows : {1, 2, 3, 1000, 65536, 200'000, (1 << 20) + 1}) {
        const StoredOrder order(num_rows, "car");
        EXPECT_EQ(order.num_blocks(), std::max<std::int64_t>(1, num_rows / 65536));
        std::vector<bool> seen(num_rows);
        for (std::int64_t place = 0; place < num_rows; ++place) {
            const auto id = order.id_at(place);
            ASSERT_TRUE(id >= 0 && id < num_rows);
            EXPECT_FALSE(seen[id]);
            seen[id] = true;
            if (place % 7 == 0) {
                EXPECT_EQ(order.place_of(id), place);
            }
        }
    }
    const StoredOrder three(200'000, "car");
    for (std::int64_t place = 0; place < 200'000; place += 11)
        EXPECT_EQ((three.id_at(place) * 3 + 2) / 200'000, (place * 3 + 2) / 200'000) << "another block";
}

TEST(StoredOrder, NeitherKeepsNeighboursNorDependsOnAnythingButTheCase)
{
    const StoredOrder order(1000, "car"), same(1000, "car"), other(1000, "bus");
    int num_neighbours = 0, num_as_other = 0;
    for (std::int64_t place = 0; place + 1 < 1000; ++place) {
        num_neighbours += std::abs(order.id_at(place) - order.id_at(place + 1)) == 1;
        num_as_other += order.id_at(place) == other.id_at(place);
        EXPECT_EQ(order.id_at(place), same.id_at(place));
    }
    EXPECT_LT(num_neighbours, 20);
    EXPECT_LT(num_as_other, 20);
}

TEST(StoredOrder, DrawsDoNotComeBackBeforeAllWereThere)
{
    for (const auto& [num_rows, count] : {std::pair<std::int64_t, std::int64_t>{1, 1},
                                          {10, 3},
                                          {1000, 1000},
                                          {4097, 512},
                                          {200'000, 30'001},
                                          {200'000, 7}}) {
        const StoredOrder order(num_rows, "car");
        for (const std::int64_t first_epoch : {std::int64_t{1}, 1 + num_rows / count}) {  // two orders
            std::vector<int> times(num_rows);
            for (std::int64_t epoch = first_epoch; epoch < first_epoch + num_rows / count; ++epoch) {
                const auto ids = order.drawn_ids(count, 5, epoch);
                ASSERT_EQ(std::ssize(ids), count);
                EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
                for (const auto id : ids) ++times[id];
                if (count == 7 && epoch > 50) break;
            }
            EXPECT_LE(*std::max_element(times.begin(), times.end()), 1) << num_rows << " " << count;
        }
    }
}

TEST(StoredOrder, TakesOfEachBlockItsShare)
{
    const StoredOrder order(200'000, "car");
    for (std::int64_t epoch = 1; epoch <= 20; ++epoch) {
        std::int64_t of_block[3] = {};
        const auto ranges = order.drawn_ranges(10'000, 5, epoch);
        EXPECT_LE(ranges.size(), 6U) << "one that goes over the end of its block is two";
        for (const auto& range : ranges) of_block[(range.first * 3 + 2) / 200'000] += range.count;
        EXPECT_EQ(of_block[0] + of_block[1] + of_block[2], 10'000);
        for (const auto count : of_block) EXPECT_NEAR(static_cast<double>(count), 10'000 / 3.0, 2);
    }
}

TEST(StoredOrder, TakesEachRowEquallyOften)
{
    constexpr int kRows = 12, kCount = 3, kDraws = 40'000;
    std::vector<int> times(kRows);
    const StoredOrder order(kRows, "car");
    for (int seed = 0; seed < kDraws; ++seed) {
        for (const auto id : order.drawn_ids(kCount, seed, 1)) ++times[id];
    }
    for (const auto found : times)
        EXPECT_NEAR(found, kDraws / 4.0, 5 * std::sqrt(kDraws * 0.25 * 0.75));  // five standard deviations
}

TEST(StoredOrder, DependsOnSeedAndEpoch)
{
    const StoredOrder order(10'000, "car");
    EXPECT_EQ(order.drawn_ids(100, 7, 1), order.drawn_ids(100, 7, 1));
    EXPECT_NE(order.drawn_ids(100, 7, 1), order.drawn_ids(100, 8, 1));
    EXPECT_NE(order.drawn_ids(100, 7, 1), order.drawn_ids(100, 7, 2));
    EXPECT_NE(order.drawn_ids(100, 7, 1), order.drawn_ids(100, 7, 101));  // the first of another order
}

TEST(StoredOrder, RefusesLessThanTwoRowsOfEachBlock)
{
    EXPECT_TRUE(throws_with<InvalidInput>("has 3 blocks, of which each gives at least 2",
                                          [] { StoredOrder(200'000, "car").drawn_ids(5, 1, 1); }));
}

}  // namespace
}  // namespace meshard
