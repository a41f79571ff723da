// SPDX-License-Identifier: Apache-2.0
// Rows drawn by their areas: as many as asked for, each with a chance in proportion to its area, from stretches of what
// is stored.
#include "apps/learning/store/area_draws.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

namespace meshard {
namespace {

/// Areas by id, and what a draw needs of them.
struct MeasuredCase {
    MeasuredCase(std::vector<float> areas, const std::string& name)
        : by_id(std::move(areas)), id(name), order(std::ssize(by_id), name)
    {
        for (std::int64_t place = 0; place < std::ssize(by_id); ++place)
            by_place.push_back(by_id[static_cast<std::size_t>(order.id_at(place))]);
        blocks = block_measures(order, by_place);
    }

    DrawnRows drawn(std::int64_t count, std::int64_t seed, std::int64_t epoch = 1) const
    {
        return drawn_by_measure(order, blocks, by_place, count, seed, id, epoch);
    }

    std::vector<float> by_id, by_place;
    std::string id;
    StoredOrder order;
    std::vector<BlockMeasures> blocks;
};

std::vector<float> wavy_areas(std::int64_t num_rows, double largest)
{
    std::vector<float> areas;
    for (std::int64_t i = 0; i < num_rows; ++i)
        areas.push_back(static_cast<float>(
            i % 7 == 3 ? 0 : 0.2 + (largest - 0.2) * std::pow(std::sin(0.37 * static_cast<double>(i)), 2)));
    return areas;
}

/// Chances of rows by the definition, found in another way than by the draw: the largest share that some rows must have
/// is cut to 1 until no share is above.
std::vector<double> chances_of(const std::vector<float>& areas, std::int64_t count)
{
    std::vector<double> chances(areas.size(), -1);
    for (bool is_done = false; !is_done;) {
        is_done = true;
        double sum = 0, left = static_cast<double>(count);
        for (std::size_t i = 0; i < areas.size(); ++i) chances[i] == 1 ? left -= 1 : sum += areas[i];
        for (std::size_t i = 0; i < areas.size(); ++i) {
            if (chances[i] == 1) continue;
            chances[i] = left * areas[i] / sum;
        }
        for (auto& chance : chances) {
            if (chance > 1) {
                chance = 1;
                is_done = false;
            }
        }
    }
    return chances;
}

TEST(DrawnByMeasure, TakesEachRowInProportionToItsArea)
{
    constexpr int kDraws = 30000;
    std::vector<std::vector<float>> all{
        wavy_areas(200, 3), wavy_areas(90, 1), {1, 0, 3, 6}, {1, 1, 1, 1, 1}, {5, 1, 1, 0, 1, 30, 1, 1}};
    const std::vector<std::int64_t> counts{10, 40, 1, 3, 4};
    for (std::size_t which = 0; which < all.size(); ++which) {
        const MeasuredCase example(all[which], "wing");
        const auto expected = chances_of(example.by_id, counts[which]);
        std::vector<int> times(example.by_id.size());
        for (int seed = 0; seed < kDraws; ++seed) {
            for (const auto id : example.drawn(counts[which], seed).ids) ++times[static_cast<std::size_t>(id)];
        }
        double chi_square = 0;
        for (std::size_t i = 0; i < times.size(); ++i) {
            const auto mean = expected[i] * kDraws, variance = mean * (1 - expected[i]);
            if (variance < 1e-6) {
                EXPECT_NEAR(times[i], mean, 1e-6) << which << ", row " << i;
                continue;
            }
            EXPECT_NEAR(times[i], mean, 5 * std::sqrt(variance)) << which << ", row " << i;
            chi_square += (times[i] - mean) * (times[i] - mean) / variance;
        }
        EXPECT_LT(chi_square,
                  static_cast<double>(times.size()) + 5 * std::sqrt(2.0 * static_cast<double>(times.size())))
            << which;
    }
}

TEST(DrawnByMeasure, GivesAsManyRowsAsAskedForOfSeveralBlocks)
{
    auto areas = wavy_areas(200'000, 2);
    for (std::size_t i = 70'000; i < areas.size(); ++i)
        areas[i] *= 40;  // most of the area is in the last two of three blocks
    const MeasuredCase example(areas, "wing");
    ASSERT_EQ(example.order.num_blocks(), 3);
    const double sum = std::accumulate(areas.begin(), areas.end(), 0.0),
                 of_first = std::accumulate(areas.begin(), areas.begin() + 66'666, 0.0);
    std::set<std::vector<std::int64_t>> different;
    for (const std::int64_t count : {1, 2, 5000, 90'000, 150'000}) {
        for (const std::int64_t epoch : {1, 2, 3}) {
            const auto drawn = example.drawn(count, 5, epoch);
            ASSERT_EQ(std::ssize(drawn.ids), count);
            EXPECT_TRUE(std::ranges::is_sorted(drawn.ids));
            EXPECT_EQ(std::ranges::adjacent_find(drawn.ids), drawn.ids.end()) << "a row twice";
            different.insert(drawn.ids);
            std::set<std::int64_t> in_ranges;
            for (const auto& range : drawn.ranges) {
                EXPECT_EQ(example.order.block_of(range.first), example.order.block_of(range.first + range.count - 1));
                for (auto place = range.first; place < range.first + range.count; ++place)
                    in_ranges.insert(example.order.id_at(place));
            }
            for (const auto id : drawn.ids) {
                EXPECT_GT(areas[static_cast<std::size_t>(id)], 0);
                EXPECT_TRUE(in_ranges.contains(id));
            }
            const auto num_first = std::ranges::lower_bound(drawn.ids, 66'666) - drawn.ids.begin();
            if (count <= 5000) {
                EXPECT_NEAR(static_cast<double>(num_first), static_cast<double>(count) * of_first / sum, 1);
                EXPECT_LT(std::ssize(in_ranges), 5 * count + 3) << "rows that lie between those drawn";
            }
        }
    }
    EXPECT_EQ(different.size(), 15U);
}

TEST(DrawnByMeasure, RefusesMoreRowsThanHaveAnArea)
{
    const MeasuredCase example({1, 0, 0, 1, 1}, "wing");
    EXPECT_EQ(example.drawn(3, 1).ids, (std::vector<std::int64_t>{0, 3, 4}));
    EXPECT_TRUE(throws_with<InvalidInput>("case wing: 3 points have an area, and data.sampling_resolution is 4",
                                          [&] { example.drawn(4, 1); }));
}

}  // namespace
}  // namespace meshard
