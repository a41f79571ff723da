// SPDX-License-Identifier: Apache-2.0
#include "ops/fused/tile_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace meshard {
namespace {

/// Whole numbers, of which sums of products are exact in any order, with gaps between the rows as they lie in memory;
/// gaps hold NaN, which any use shows.
struct Rows {
    Rows(std::int64_t num_rows, std::int64_t width, std::int64_t gap, std::mt19937& random)
        : stride(width + gap), values(num_rows * stride, std::numeric_limits<float>::quiet_NaN())
    {
        std::uniform_int_distribution<int> number(-100, 100);
        for (std::int64_t r = 0; r < num_rows; ++r) {
            for (std::int64_t j = 0; j < width; ++j) values[r * stride + j] = static_cast<float>(number(random));
        }
    }

    std::int64_t stride;
    std::vector<float> values;
};

struct TileShape {
    std::int64_t m, n, k;
};

TEST(TileProduct, EqualsATripleLoopHoweverTheMatricesLie)
{
    const auto product = tile_product();
    if (!product) GTEST_SKIP() << "this processor has no AVX-512: products are the BLAS's";
    std::mt19937 random(7);
    std::vector<TileShape> shapes{{128, 256, 128}, {32, 250, 16}, {32, 16, 256}, {16, 256, 32}, {1, 1, 1},
                                  {1, 100, 32},    {100, 1, 32},  {12, 32, 257}, {13, 33, 600}, {5, 7, 0}};
    for (std::int64_t i = 1; i <= 40; ++i) shapes.push_back({i, 1 + i * 7 % 71, 1 + i * 29 % 301});
    for (const auto& [m, n, k] : shapes) {
        for (int kind = 0; kind < 32; ++kind) {
            const bool a_by_column = (kind & 1) != 0, b_by_column = (kind & 2) != 0, to_rows = (kind & 4) != 0,
                       to_columns = (kind & 8) != 0, to_all = (kind & 16) != 0;
            const Rows a(a_by_column ? k : m, a_by_column ? m : k, 3, random),
                b(b_by_column ? n : k, b_by_column ? k : n, 5, random);
            Rows c(m, n, 2, random);
            const Rows by_row(1, m, 0, random), by_column(1, n, 0, random), matrix(m, n, 7, random);
            const bool in_place = k % 2 == 0;  // what is added may be what is overwritten
            const auto before = in_place ? c : matrix;
            const StridedMatrix strided_a{a.values.data(), a_by_column ? 1 : a.stride, a_by_column ? a.stride : 1};
            const StridedMatrix strided_b{b.values.data(), b_by_column ? 1 : b.stride, b_by_column ? b.stride : 1};

            product(m, n, k, strided_a, strided_b,
                    {to_rows ? by_row.values.data() : nullptr, to_columns ? by_column.values.data() : nullptr,
                     !to_all    ? nullptr
                     : in_place ? c.values.data()
                                : matrix.values.data(),
                     before.stride},
                    c.values.data(), c.stride);

            for (std::int64_t i = 0; i < m; ++i) {
                for (std::int64_t j = 0; j < c.stride; ++j) {
                    const auto found = c.values[i * c.stride + j];
                    if (j >= n) {
                        ASSERT_TRUE(std::isnan(found)) << "the gap after row " << i << " was written to";
                        continue;
                    }
                    double expected = (to_rows ? by_row.values[i] : 0.0) + (to_columns ? by_column.values[j] : 0.0) +
                                      (to_all ? before.values[i * before.stride + j] : 0.0);
                    for (std::int64_t l = 0; l < k; ++l) {
                        expected += static_cast<double>(
                                        strided_a.data[i * strided_a.row_stride + l * strided_a.column_stride]) *
                                    strided_b.data[l * strided_b.row_stride + j * strided_b.column_stride];
                    }
                    ASSERT_EQ(found, expected)
                        << m << " x " << n << " x " << k << ", kind " << kind << ", entry " << i << ", " << j;
                }
            }
        }
    }
}

TEST(TileProduct, OverwritesWhatItDoesNotAddTo)
{
    const auto product = tile_product();
    if (!product) GTEST_SKIP() << "this processor has no AVX-512: products are the BLAS's";
    const std::vector<float> a(20 * 5, 1), b(5 * 40, 2);
    std::vector<float> c(20 * 40, std::numeric_limits<float>::quiet_NaN());

    product(20, 40, 5, {a.data(), 5, 1}, {b.data(), 40, 1}, {}, c.data(), 40);

    for (const auto entry : c) EXPECT_EQ(entry, 10);
}

TEST(TileProduct, HandsNanOnToItsRowOnly)
{
    const auto product = tile_product();
    if (!product) GTEST_SKIP() << "this processor has no AVX-512: products are the BLAS's";
    std::vector<float> a(20 * 5, 1), b(5 * 40, 2), c(20 * 40);
    a[3 * 5 + 2] = std::numeric_limits<float>::quiet_NaN();

    product(20, 40, 5, {a.data(), 5, 1}, {b.data(), 40, 1}, {}, c.data(), 40);

    for (std::int64_t i = 0; i < 20; ++i) {
        for (std::int64_t j = 0; j < 40; ++j) EXPECT_EQ(std::isnan(c[i * 40 + j]), i == 3);
    }
}

}  // namespace
}  // namespace meshard
