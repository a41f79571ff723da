// SPDX-License-Identifier: Apache-2.0
// Operators that share their rows among LibTorch's threads: their number changes no bit of a result.
#include "ops/fields/mesh_geometry.h"
#include "ops/fields/mesh_operators.h"
#include "ops/rows/segment_reduce.h"
#include "ops/surface/surface_distance.h"
#include "sharding/exchange/row_copies.h"
#include "tests/support/sample_meshes.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <vector>

namespace meshard {
namespace {

/// Expects the same tensors of `work` on one thread and on four.
template <class Work>
void expect_the_same_on_threads(const Work& work)
{
    const int before = at::get_num_threads();
    at::set_num_threads(1);
    const std::vector<at::Tensor> alone = work();
    at::set_num_threads(4);
    const std::vector<at::Tensor> together = work();
    at::set_num_threads(before);
    ASSERT_EQ(together.size(), alone.size());
    for (std::size_t i = 0; i < alone.size(); ++i) EXPECT_TRUE(at::equal(together[i], alone[i])) << "result " << i;
}

TEST(Threads, ReduceSegments)
{
    const auto sizes = at::randint(0, 9, {30000});
    const auto offsets = at::cat({at::zeros({1}, at::kLong), sizes.cumsum(0)});
    const auto values = at::randn({offsets[-1].item<std::int64_t>(), 16});
    expect_the_same_on_threads([&] {
        return std::vector<at::Tensor>{segment_reduce(values, offsets, SegmentReduction::Sum).values,
                                       segment_reduce(values, offsets, SegmentReduction::Max).values,
                                       segment_softmax(values, offsets)};
    });
}

TEST(Threads, CopyRows)
{
    const auto rows = at::randn({50000, 16});
    const auto index = at::randint(0, rows.size(0), {100000});
    expect_the_same_on_threads([&] {
        return std::vector<at::Tensor>{take_some_rows(rows, index),
                                       scatter_some_rows(take_some_rows(rows, index), index, rows.size(0))};
    });
}

TEST(Threads, ApplyMeshOperators)
{
    const MeshGeometry geometry(tet_cube(16));
    const auto field = at::randn({geometry.centroids().size(0), 8}, at::kDouble).requires_grad_();
    expect_the_same_on_threads([&] {
        const auto gradient = least_squares_gradient(geometry)(field);
        field.mutable_grad() = at::Tensor();
        gradient.square().sum().backward();
        return std::vector<at::Tensor>{gradient.detach(), field.grad()};
    });
}

TEST(Threads, MeasureDistancesToSurfaces)
{
    const auto vertices = at::randn({300, 3}, at::kDouble), queries = at::randn({20000, 3}, at::kDouble);
    const auto faces = at::arange(300, at::kLong).view({100, 3});
    for (const auto sign : {SurfaceSign::PseudoNormal, SurfaceSign::WindingNumber}) {
        expect_the_same_on_threads([&] {
            const auto found = signed_distance(vertices, faces, queries, {.sign = sign});
            return std::vector<at::Tensor>{found.distances, found.points, found.faces};
        });
    }
}

}  // namespace
}  // namespace meshard
