// SPDX-License-Identifier: Apache-2.0
// The kernels' bodies, run by the host: where the arithmetic of indices is checked without a GPU.
#include "ops/cuda/row_packing.h"
#include "ops/cuda/segment_sweep.h"
#include "ops/neighbors/grid_search.h"
#include "ops/rows/on_gpu.h"
#include "ops/rows/segment_reduce.h"
#include "ops/search/grid_walk.h"
#include "ops/search/point_search.h"
#include "tests/support/expect_error.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace meshard {
namespace {

template <class T>
std::vector<T> draw_rows(std::mt19937_64& random, std::int64_t n, int dimensions)
{
    std::vector<T> rows(n * dimensions);
    const auto kind = random() % 5;
    for (auto& x : rows) {
        const auto value = static_cast<double>(random() % 100003) / 100003;
        // Even, on a lattice with many equal ones, graded, all in one place, far from zero.
        x = static_cast<T>(kind == 0   ? value
                           : kind == 1 ? std::floor(4 * value) / 4
                           : kind == 2 ? std::pow(value, 5)
                           : kind == 3 ? 0.5
                                       : 30 * value - 20);
    }
    return rows;
}

RadiusLimit draw_limit(std::mt19937_64& random, double largest)
{
    const auto radius = largest * std::pow(10.0, -static_cast<double>(random() % 300) / 100);
    return {radius, random() % 2 == 0 ? kAllNeighbors : 1 + static_cast<std::int64_t>(random() % 8)};
}

template <class T>
at::Tensor tensor_of(const std::vector<T>& numbers, std::int64_t width)
{
    return at::tensor(numbers, c10::CppTypeToScalarType<T>::value)
        .view({static_cast<std::int64_t>(numbers.size()) / width, width});
}

template <class T>
void expect_same(const FoundNeighbors& found, const NeighborLists<T>& expected)
{
    const std::vector<std::int64_t> ids(expected.ids.begin(), expected.ids.end());
    ASSERT_TRUE(at::equal(found.offsets, at::tensor(expected.offsets, at::kLong)));
    ASSERT_TRUE(at::equal(found.rows, at::tensor(ids, at::kLong)));
    ASSERT_TRUE(at::equal(found.distances, at::tensor(expected.distances, c10::CppTypeToScalarType<T>::value)));
}

template <class T>
void expect_neighbors_of_the_tree()
{
    std::mt19937_64 random(4);
    for (int trial = 0; trial < 300; ++trial) {
        const int dimensions = 1 + static_cast<int>(random() % 3);
        const auto points = draw_rows<T>(random, static_cast<std::int64_t>(random() % 200), dimensions);
        const auto queries = draw_rows<T>(random, static_cast<std::int64_t>(random() % 30), dimensions);
        NeighborRequest request{"search", random() % 2 == 0, 1 + static_cast<std::int64_t>(random() % 40), {}, {}};
        for (int i = 0; !request.is_knn && i < 2; ++i) {
            request.limits.push_back(draw_limit(random, 10));
        }
        for (int d = 0; random() % 2 == 0 && d < dimensions; ++d) {
            request.options.period.resize(dimensions);
            request.options.period[d] = static_cast<double>(random() % 3) * 0.7;
        }
        std::vector<std::int32_t> excluded;
        const auto num_points = static_cast<std::int64_t>(points.size()) / dimensions;
        for (std::size_t i = 0; trial % 3 == 0 && i < queries.size() / dimensions; ++i) {
            excluded.push_back(num_points == 0 || i % 4 == 0 ? -1 : static_cast<std::int32_t>(random() % num_points));
        }
        const PointSearch<T> search(points, dimensions, request.options.period);
        const auto expected = request.is_knn ? std::vector{search.knn(queries, request.k, excluded)}
                                             : search.within(queries, request.limits, excluded);

        const auto found =
            GridSearch<T, HostExecutor>({}, tensor_of(points, dimensions), tensor_of(queries, dimensions),
                                        excluded.empty() ? at::Tensor() : at::tensor(excluded, at::kInt))
                .answer(request);

        ASSERT_EQ(found.size(), expected.size());
        for (std::size_t l = 0; l < found.size(); ++l) expect_same(found[l], expected[l]);
    }
}

TEST(GpuKernelsReference, CellGridFindsTheNeighborsOfTheTree)
{
    expect_neighbors_of_the_tree<float>();
    expect_neighbors_of_the_tree<double>();
}

template <class T>
void expect_the_grids_order()
{
    std::mt19937_64 random(6);
    for (int trial = 0; trial < 100; ++trial) {
        const auto points = draw_rows<T>(random, static_cast<std::int64_t>(random() % 300), 3),
                   queries = draw_rows<T>(random, static_cast<std::int64_t>(random() % 30), 3);
        NeighborRequest request{"search", false, 0, {}, {.order = NeighborOrder::Grid}};
        request.limits.push_back(draw_limit(random, 1));

        const auto found =
            GridSearch<T, HostExecutor>({}, tensor_of(points, 3), tensor_of(queries, 3), at::Tensor()).answer(request);

        expect_same(found.front(), neighbors_in_grid_order<T>(points, queries, request.limits.front()));
    }
}

TEST(GpuKernelsReference, WalkOverTheGridHasItsOrder)
{
    expect_the_grids_order<float>();
    expect_the_grids_order<double>();
}

TEST(GpuKernelsReference, GridsAreNeverMuchLargerThanTheCloud)
{
    const double low[] = {-1, 0, 5}, high[] = {1, 1e6, 5};

    const auto shape = grid_for_radius(low, high, 1e-9, 1000);

    EXPECT_LE(shape.num_cells(), 2000);
    EXPECT_GE(shape.num_cells(), 500);
    EXPECT_EQ(shape.dims[2], 1);
    EXPECT_EQ(grid_for_radius(low, high, 1e9, 1000).num_cells(), 1);
    EXPECT_EQ(grid_for_radius(low, low, 0.1, 0).num_cells(), 1);
    EXPECT_EQ(grid_for_nearest(low, low, 16, 1000).num_cells(), 1);
    EXPECT_LE(grid_for_nearest(low, high, 16, 1000).num_cells(), 250);
    EXPECT_GE(grid_for_nearest(low, high, 16, 1000).num_cells(), 100);
}

TEST(GpuKernelsReference, SweepsAreThoseOfSegmentReduce)
{
    std::mt19937_64 random(5);
    for (int trial = 0; trial < 50; ++trial) {
        std::vector<std::int64_t> offsets{0};
        for (auto rows = random() % 6; rows > 0; --rows)
            offsets.push_back(offsets.back() + static_cast<std::int64_t>(random() % 4));
        const auto num_rows = static_cast<std::int64_t>(offsets.size()) - 1;
        auto values = at::empty({offsets.back(), 3}, at::kDouble);
        for (std::int64_t i = 0; i < values.numel(); ++i)
            values.view({-1})[i] = random() % 8 == 0 ? std::nan("") : static_cast<double>(random() % 5) - 2;  // ties
        const auto table = at::tensor(offsets, at::kLong);
        for (const auto& [kind, reduction] :
             {std::pair(SegmentSweep::Sum, SegmentReduction::Sum), std::pair(SegmentSweep::Max, SegmentReduction::Max),
              std::pair(SegmentSweep::Min, SegmentReduction::Min)}) {
            const auto expected = segment_reduce(values, table, reduction);

            auto found = at::empty({num_rows, 3}, at::kDouble), arguments = at::empty({num_rows, 3}, at::kLong);
            sweep_segments(HostExecutor{}, values.const_data_ptr<double>(), offsets.data(), num_rows, 3, kind,
                           found.mutable_data_ptr<double>(), arguments.mutable_data_ptr<std::int64_t>());

            EXPECT_TRUE(at::equal(found.isnan(), expected.values.isnan()));
            EXPECT_TRUE(at::equal(found.nan_to_num(), expected.values.nan_to_num()));
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
    EXPECT_TRUE(
        at::equal(unpacked, at::zeros({7, 4}).index_copy(0, at::tensor({5, 0, 3}, at::kLong), packed.narrow(0, 0, 3))));

    // Row 0 takes packed row 1, row 5 takes 0 and 3.
    const std::vector<std::int64_t> offsets{0, 1, 1, 1, 2, 2, 4, 4}, places{1, 2, 0, 3};
    auto sums = rows.clone();
    add_packed_rows(HostExecutor{}, packed.const_data_ptr<float>(), offsets.data(), places.data(), 7, 4,
                    sums.mutable_data_ptr<float>());
    EXPECT_TRUE(at::equal(sums, rows.index_add(0, at::tensor(index, at::kLong), packed)));
}

TEST(GpuKernelsReference, WordsLieAtMultiplesOfTheirSize)
{
    const auto bytes = [](std::int64_t row, std::uintptr_t from, std::uintptr_t to) {
        return word_bytes(row, reinterpret_cast<const void*>(from), reinterpret_cast<const void*>(to));
    };
    EXPECT_EQ(bytes(24, 512, 1024), 8);
    EXPECT_EQ(bytes(24, 512 + 4, 1024), 4);  // one row of floats that begins behind another number
    EXPECT_EQ(bytes(24, 512, 1024 + 2), 2);
    EXPECT_EQ(bytes(24, 512 + 1, 1024), 1);
    EXPECT_EQ(bytes(12, 512, 1024), 4);
    EXPECT_EQ(bytes(6, 512, 1024), 2);
    EXPECT_EQ(bytes(5, 512, 1024), 1);
    EXPECT_EQ(bytes(0, 512, 1024), 8);
}

TEST(GpuKernelsReference, BuildsWithoutKernelsSaySo)
{
    EXPECT_TRUE(throws_with<Error>("has no kernels for GPUs. Configure with -DMESHARD_WITH_CUDA=ON",
                                   [] { on_gpu(at::ones({1}), [](const auto&) {}); }));
}

}  // namespace
}  // namespace meshard
