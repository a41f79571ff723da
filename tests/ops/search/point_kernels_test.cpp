// SPDX-License-Identifier: Apache-2.0
#include "ops/search/point_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

namespace meshard {
namespace {

template <class T>
class PointKernelsOf : public testing::Test {
protected:
    std::mt19937_64 random{3};

    /// Numbers of a coarse lattice, so that many are equal.
    std::vector<T> draw(std::size_t count)
    {
        std::vector<T> values(count);
        for (auto& value : values) value = static_cast<T>(random() % 17) / T(3);
        return values;
    }
    std::vector<std::int32_t> draw_ids(std::size_t count)
    {
        std::vector<std::int32_t> ids(count);
        for (std::size_t i = 0; i < count; ++i) ids[i] = static_cast<std::int32_t>(i);
        std::shuffle(ids.begin(), ids.end(), random);
        return ids;
    }
};
using KernelTypes = testing::Types<float, double>;
TYPED_TEST_SUITE(PointKernelsOf, KernelTypes);

TYPED_TEST(PointKernelsOf, FilterAsALoopDoesOnEveryInstructionSet)
{
    using T = TypeParam;
    for (const auto& kernels : usable_point_kernels<T>()) {
        for (int trial = 0; trial < 60; ++trial) {
            const auto count = this->random() % 50;
            const int dimensions = 1 + trial % 3;
            const bool is_periodic = trial % 2 == 1;
            std::vector<std::vector<T>> coordinates;
            PointArrays<T> points{};
            for (int d = 0; d < dimensions; ++d) {
                coordinates.push_back(this->draw(count));
                coordinates[d].resize(count + kPointBlock, std::numeric_limits<T>::quiet_NaN());
            }
            for (int d = 0; d < dimensions; ++d) points.x[d] = coordinates[d].data();
            auto ids = this->draw_ids(count);
            ids.resize(count + kPointBlock);
            points.ids = ids.data();
            const auto x = this->draw(3);
            const std::vector<T> period(3, T(6));
            const T bound = x[0];
            std::vector<T> squares(count + kPointBlock);
            std::vector<std::int32_t> found(count + kPointBlock);

            const auto num_found = kernels.filter[dimensions - 1][is_periodic](
                points, static_cast<std::int64_t>(count), x.data(), period.data(), bound, squares.data(), found.data());

            std::vector<std::pair<T, std::int32_t>> expected, actual;
            for (std::size_t i = 0; i < count; ++i) {
                volatile T sum = 0;  // no fused operations
                for (int d = 0; d < dimensions; ++d) {
                    T gap = std::abs(coordinates[d][i] - x[d]);
                    if (is_periodic) gap = std::min(gap, period[d] - gap);
                    volatile T square = gap * gap;
                    sum = sum + square;
                }
                if (sum <= bound) expected.emplace_back(sum, ids[i]);
            }
            for (std::int64_t i = 0; i < num_found; ++i) actual.emplace_back(squares[i], found[i]);
            ASSERT_EQ(actual, expected);
        }
    }
}

TYPED_TEST(PointKernelsOf, GatherWhatIsWithinReachOfABox)
{
    using T = TypeParam;
    for (const auto& kernels : usable_point_kernels<T>()) {
        for (int trial = 0; trial < 60; ++trial) {
            const auto leaf = this->draw(3 * kLeafPoints), low = this->draw(3);
            const auto ids = this->draw_ids(kLeafPoints);
            auto high = low;
            for (auto& x : high) x += T(0.5);
            const T bound = static_cast<T>(trial % 9);
            std::vector<std::vector<T>> coordinates(3, std::vector<T>(kLeafPoints + kPointBlock));
            std::vector<std::int32_t> found(kLeafPoints + kPointBlock);

            const auto count = kernels.gather[2][0](
                leaf.data(), ids.data(), low.data(), high.data(), nullptr, bound,
                {{coordinates[0].data(), coordinates[1].data(), coordinates[2].data()}, found.data()});

            std::vector<std::int32_t> expected;
            for (int i = 0; i < kLeafPoints; ++i) {
                T sum = 0;
                for (int d = 0; d < 3; ++d) {
                    const T x = leaf[d * kLeafPoints + i], gap = std::max({x - high[d], low[d] - x, T(0)});
                    sum += gap * gap;
                }
                if (sum > bound) continue;
                EXPECT_EQ(coordinates[2][expected.size()], leaf[2 * kLeafPoints + i]);
                expected.push_back(ids[i]);
            }
            ASSERT_EQ(std::vector<std::int32_t>(found.begin(), found.begin() + count), expected);
        }
    }
}

TYPED_TEST(PointKernelsOf, SortCountAndCopy)
{
    using T = TypeParam;
    for (const auto& kernels : usable_point_kernels<T>()) {
        for (std::int64_t count = 0; count <= kMaxSorted; ++count) {
            const auto squares = this->draw(count);
            const auto ids = this->draw_ids(count);
            std::vector<std::pair<T, std::int32_t>> expected, actual;
            for (std::int64_t i = 0; i < count; ++i) expected.emplace_back(squares[i], ids[i]);
            std::sort(expected.begin(), expected.end());
            std::vector<T> sorted(count), roots(count), copied(count + 1, T(-1));
            std::vector<std::int32_t> sorted_ids(count), copied_ids(count + 1, -1);

            kernels.sort(squares.data(), ids.data(), count, sorted.data(), sorted_ids.data());
            kernels.roots(squares.data(), count, roots.data());
            kernels.copy(ids.data(), squares.data(), count, copied_ids.data(), copied.data());

            for (std::int64_t i = 0; i < count; ++i) actual.emplace_back(sorted[i], sorted_ids[i]);
            EXPECT_EQ(actual, expected);
            for (std::int64_t i = 0; i < count; ++i) EXPECT_EQ(roots[i], std::sqrt(squares[i]));
            EXPECT_TRUE(std::equal(ids.begin(), ids.end(), copied_ids.begin()) &&
                        std::equal(squares.begin(), squares.end(), copied.begin()));
            EXPECT_TRUE(copied[count] == T(-1) && copied_ids[count] == -1);
            EXPECT_EQ(kernels.count_up_to(squares.data(), count, T(2)),
                      std::count_if(squares.begin(), squares.end(), [](T x) { return x <= T(2); }));
        }
    }
}

}  // namespace
}  // namespace meshard
