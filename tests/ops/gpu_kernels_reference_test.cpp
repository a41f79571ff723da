// SPDX-License-Identifier: Apache-2.0
// The kernels' bodies, run by the host: where the arithmetic of indices is checked without a GPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "ops/cuda/cell_grid.h"
#include "ops/cuda/row_packing.h"
#include "ops/cuda/segment_sweep.h"
#include "ops/point_search.h"
#include "ops/segment_reduce.h"

namespace meshard {
namespace {

template <class T>
std::vector<T> draw_points(std::mt19937_64& random, std::int64_t n)
{
    std::vector<T> points(3 * n);
    const auto kind = random() % 4;
    for (auto& x : points) {
        const auto value = static_cast<double>(random() % 100003) / 100003;
        // Even, on a lattice with many equal ones, graded, all in one place.
        x = static_cast<T>(kind == 0 ? value : kind == 1 ? std::floor(4 * value) / 4 : kind == 2 ? std::pow(value, 5) : 0.5);
    }
    return points;
}

template <class T>
GridShape shape_around(const std::vector<T>& points, double radius)
{
    double low[3] = {0, 0, 0}, high[3] = {0, 0, 0};
    for (std::size_t i = 0; i < points.size(); ++i) {
        const auto x = static_cast<double>(points[i]);
        low[i % 3] = i < 3 ? x : std::min(low[i % 3], x);
        high[i % 3] = i < 3 ? x : std::max(high[i % 3], x);
    }
    return grid_shape(low, high, radius, static_cast<std::int64_t>(points.size()) / 3);
}

template <class T>
void expect_neighbors_of_the_tree()
{
    std::mt19937_64 random(4);
    for (int trial = 0; trial < 200; ++trial) {
        const auto points = draw_points<T>(random, static_cast<std::int64_t>(random() % 200)), queries = draw_points<T>(random, static_cast<std::int64_t>(random() % 30));
        const auto m = static_cast<std::int64_t>(queries.size()) / 3;
        const double radius = std::pow(10.0, -static_cast<double>(random() % 300) / 100);
        const std::int64_t most = random() % 2 == 0 ? kAllNeighbors : 1 + static_cast<std::int64_t>(random() % 8);
        const RadiusLimit limit{radius, most};
        const auto expected = PointSearch<T>(points, 3).within(queries, {&limit, 1}).front();

        const CellGrid<T, HostExecutor> grid({}, points.data(), static_cast<std::int64_t>(points.size()) / 3, shape_around(points, radius));
        std::vector<std::int64_t> offsets(m + 1);
        grid.count(queries.data(), m, static_cast<T>(radius), most, offsets.data());
        std::vector<std::int32_t> ids(offsets.back());
        std::vector<T> distances(offsets.back());
        grid.fill(queries.data(), m, static_cast<T>(radius), offsets.data(), ids.data(), distances.data());

        ASSERT_EQ(offsets, expected.offsets);
        ASSERT_EQ(ids, expected.ids);
        ASSERT_EQ(distances, expected.distances);
    }
}

TEST(GpuKernelsReference, CellGridFindsTheNeighborsOfTheTree)
{
    expect_neighbors_of_the_tree<float>();
    expect_neighbors_of_the_tree<double>();
}

TEST(GpuKernelsReference, GridsAreNeverMuchLargerThanTheCloud)
{
    const double low[] = {-1, 0, 5}, high[] = {1, 1e6, 5};

    const auto shape = grid_shape(low, high, 1e-9, 1000);

    EXPECT_LE(shape.num_cells(), 2000);
    EXPECT_GE(shape.num_cells(), 500);
    EXPECT_EQ(shape.dims[2], 1);
    EXPECT_EQ(grid_shape(low, high, 1e9, 1000).num_cells(), 1);
    EXPECT_EQ(grid_shape(low, low, 0.1, 0).num_cells(), 1);
}

TEST(GpuKernelsReference, SweepsAreThoseOfSegmentReduce)
{
    std::mt19937_64 random(5);
    for (int trial = 0; trial < 50; ++trial) {
        std::vector<std::int64_t> offsets{0};
        for (auto rows = random() % 6; rows > 0; --rows) offsets.push_back(offsets.back() + static_cast<std::int64_t>(random() % 4));
        const auto num_rows = static_cast<std::int64_t>(offsets.size()) - 1;
        auto values = at::empty({offsets.back(), 3}, at::kDouble);
        for (std::int64_t i = 0; i < values.numel(); ++i) values.view({-1})[i] = static_cast<double>(random() % 5) - 2;   // ties
        const auto table = at::tensor(offsets, at::kLong);
        for (const auto& [kind, reduction] : {std::pair(SegmentSweep::Sum, SegmentReduction::Sum), std::pair(SegmentSweep::Mean, SegmentReduction::Mean),
                                              std::pair(SegmentSweep::Max, SegmentReduction::Max), std::pair(SegmentSweep::Min, SegmentReduction::Min)}) {
            const auto expected = segment_reduce(values, table, reduction);

            auto found = at::empty({num_rows, 3}, at::kDouble), arguments = at::empty({num_rows, 3}, at::kLong);
            sweep_segments(HostExecutor{}, values.const_data_ptr<double>(), offsets.data(), num_rows, 3, kind, found.mutable_data_ptr<double>(),
                           arguments.mutable_data_ptr<std::int64_t>());

            EXPECT_TRUE(at::equal(found, expected.values));
            if (expected.arguments.defined()) {
                EXPECT_TRUE(at::equal(arguments, expected.arguments));
            }
        }
    }
}

TEST(GpuKernelsReference, PackedRowsComeBack)
{
    const auto rows = at::arange(28, at::kFloat).view({7, 4});
    const std::vector<std::int64_t> index{5, 0, 3, 5};
    auto packed = at::empty({4, 4}, at::kFloat);

    pack_rows(HostExecutor{}, rows.const_data_ptr<float>(), index.data(), 4, 4, packed.mutable_data_ptr<float>());

    EXPECT_TRUE(at::equal(packed, rows.index_select(0, at::tensor(index, at::kLong))));
    auto unpacked = at::zeros({7, 4}, at::kFloat);
    unpack_rows(HostExecutor{}, packed.const_data_ptr<float>(), index.data(), 3, 4, unpacked.mutable_data_ptr<float>());
    EXPECT_TRUE(at::equal(unpacked, at::zeros({7, 4}).index_copy(0, at::tensor({5, 0, 3}, at::kLong), packed.narrow(0, 0, 3))));

    // Row 0 takes packed row 1, row 5 takes 0 and 3.
    const std::vector<std::int64_t> offsets{0, 1, 1, 1, 2, 2, 4, 4}, places{1, 2, 0, 3};
    auto sums = rows.clone();
    add_packed_rows(HostExecutor{}, packed.const_data_ptr<float>(), offsets.data(), places.data(), 7, 4, sums.mutable_data_ptr<float>());
    EXPECT_TRUE(at::equal(sums, rows.index_add(0, at::tensor(index, at::kLong), packed)));
}

}  // namespace
}  // namespace meshard
