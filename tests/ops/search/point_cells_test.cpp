// SPDX-License-Identifier: Apache-2.0
#include "ops/search/point_cells.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace meshard {
namespace {

TEST(PointCells, ComeBackFromTheirBytesAndHoldEveryPoint)
{
    std::mt19937_64 random(3);
    std::normal_distribution<float> normal(1000, 5);
    for (int trial = 0; trial < 40; ++trial) {
        const int dimensions = 1 + trial % 3;
        std::vector<float> points(dimensions * (1 + random() % 200));
        for (auto& x : points) x = trial % 4 == 3 ? 2.5f : normal(random);  // all in one place

        const auto cells = point_cells<float>(points, dimensions);
        const auto back = unpacked_cells(packed(cells));

        ASSERT_EQ(back.codes, cells.codes);
        EXPECT_EQ(back.low, cells.low);
        const auto centroids = back.centroids<float>(dimensions);
        const double reach = back.reach<float>(dimensions);
        for (std::size_t i = 0; i < points.size(); i += dimensions) {
            double nearest = std::numeric_limits<double>::infinity();
            for (std::size_t m = 0; m < centroids.size(); m += dimensions) {
                double sum = 0;
                for (int d = 0; d < dimensions; ++d)
                    sum += std::pow(static_cast<double>(points[i + d]) - static_cast<double>(centroids[m + d]), 2);
                nearest = std::min(nearest, std::sqrt(sum));
            }
            ASSERT_LE(nearest, reach);
        }
    }
}

TEST(PointCells, OfAThousandPointsTakeThreeOrFourBytesEach)
{
    std::mt19937_64 random(4);
    std::uniform_real_distribution<double> unit(0, 1);
    std::vector<double> points(3 * 1000);
    for (auto& x : points) x = unit(random);

    EXPECT_LE(packed(point_cells<double>(points, 3)).size(), 4100u);
}

TEST(PointCells, PackAscendingNumbersOfAnySize)
{
    const std::vector<std::int64_t> numbers{0,   0,   1,         127,
                                            128, 300, 1'000'000, std::numeric_limits<std::int64_t>::max()};
    std::vector<std::uint8_t> bytes{9};

    pack_ascending(numbers, bytes);

    std::size_t at = 1;
    EXPECT_EQ(unpack_ascending(bytes, at, 8), numbers);
    EXPECT_EQ(at, bytes.size());
    EXPECT_LE(bytes.size(), 1u + 1 + 8 * 3 + 11);  // one out of the way costs no more than itself
}

TEST(PointCells, PackAscendingNumbersInLittleMoreThanTheyTell)
{
    std::mt19937_64 random(5);
    for (const double gap : {1.0, 30.0, 470.0, 2e5}) {
        std::exponential_distribution<double> gaps(1 / gap);
        std::vector<std::int64_t> numbers{0};
        for (int i = 0; i < 5000; ++i) numbers.push_back(numbers.back() + static_cast<std::int64_t>(gaps(random)));
        std::vector<std::uint8_t> bytes;

        pack_ascending(numbers, bytes);

        std::size_t at = 0;
        EXPECT_EQ(unpack_ascending(bytes, at, 5001), numbers);
        const double entropy = std::log2(std::exp(1.0) * gap);  // bits of one gap, at least
        EXPECT_LE(static_cast<double>(8 * bytes.size()) / 5001, entropy + 0.6) << gap;
    }
}

}  // namespace
}  // namespace meshard
