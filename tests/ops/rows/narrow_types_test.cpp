// SPDX-License-Identifier: Apache-2.0
// Sums over ranks of half and bfloat16 values: class losses, neighbour rows, rows by id and segments, against the same
// in double, rounded once.
#include "ops/neighbors/neighbors.h"
#include "ops/rows/ghost_exchange.h"
#include "ops/rows/row_gather.h"
#include "ops/rows/segment_reduce.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/point_partitions.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace meshard {
namespace {

constexpr int kNarrowRankCounts[] = {1, 2, 3, 4};

double rounding(at::ScalarType type)
{
    return type == at::kHalf ? 0x1p-11 : 0x1p-8;
}

at::Tensor waves(c10::IntArrayRef shape, double start)
{
    return at::arange(c10::multiply_integers(shape), at::kDouble).mul(0.7311).add(start).sin_().view(shape);
}

at::Tensor rounded(const at::Tensor& values, at::ScalarType type)
{
    return values.to(at::kFloat).to(type);
}

/// Rows cut 5:1:0:... of a whole.
at::Tensor cut(const at::Tensor& rows, const std::shared_ptr<const DeviceMesh>& mesh)
{
    Extents extents(mesh->size(0), 0);
    extents[0] = rows.size(0) - (mesh->size(0) > 1 ? rows.size(0) / 6 : 0);
    if (mesh->size(0) > 1) extents[1] = rows.size(0) / 6;
    auto axes = std::vector<AxisLayout>{{Shard(0), std::make_shared<const Extents>(extents), 1}};
    const auto spec = make_spec(mesh, axes);
    std::int64_t first = 0;
    for (std::int64_t r = 0; r < mesh->coordinate(0); ++r) first += extents[r];
    return from_local(rows.narrow(0, first, extents[mesh->coordinate(0)]).clone(), spec);
}

TEST(NarrowTypes, ClassLossesAreRoundedOnce)
{
    constexpr std::int64_t n = 1203, classes = 7;  // more rows than the narrow types count
    const auto targets = at::arange(n, at::kLong).mul(5).remainder(classes);
    targets.slice(0, 0, n, 10).fill_(-100);  // ignored
    for (const auto type : {at::kBFloat16, at::kHalf}) {
        const auto scores = rounded(waves({n, classes}, 0.1).mul(2), type),
                   weights = rounded(waves({classes}, 0.4).add(1.5), type);
        for (const auto reduction : {at::Reduction::Mean, at::Reduction::Sum}) {
            if (reduction == at::Reduction::Sum && type == at::kHalf)
                continue;  // beyond its largest number, squared by the tolerance
            auto x0 = scores.to(at::kDouble).requires_grad_();
            const auto expected = at::nll_loss(at::log_softmax(x0, 1), targets, weights.to(at::kDouble), reduction);
            expected.backward();
            for (const int size : kNarrowRankCounts) {
                run_ranks(size, [&](const auto& mesh) {
                    auto x = cut(scores, mesh).requires_grad_();
                    const auto loss = at::nll_loss(at::log_softmax(x, 1), cut(targets, mesh), weights, reduction);
                    loss.backward();
                    EXPECT_EQ(loss.scalar_type(), type);
                    // The logarithms are rounded, and the sum of them.
                    EXPECT_TRUE(
                        tensors_near(full_tensor(loss).detach().to(at::kDouble), expected.detach(), 2 * rounding(type)))
                        << at::toString(type) << " on " << size;
                    EXPECT_TRUE(tensors_near(full_tensor(x.grad()).to(at::kDouble), x0.grad(), 8 * rounding(type)))
                        << at::toString(type) << " on " << size;
                });
            }
        }
    }
}

TEST(NarrowTypes, SegmentsAreAddedInSinglePrecision)
{
    const auto offsets = at::tensor({0, 700, 700, 1201}, at::kLong);
    for (const auto type : {at::kBFloat16, at::kHalf}) {
        const auto values = rounded(waves({1201, 3}, 0.3).add(2), type);
        const auto wide = values.to(at::kDouble);
        for (const auto reduction : {SegmentReduction::Sum, SegmentReduction::Mean}) {
            const auto found = segment_reduce(values, offsets, reduction).values,
                       expected = segment_reduce(wide, offsets, reduction).values;
            EXPECT_TRUE(
                tensors_near(found.to(at::kDouble), rounded(expected, type).to(at::kDouble), rounding(type) * 1e-3))
                << at::toString(type);
        }
    }
}

TEST(NarrowTypes, RowsByIdAddUpTheirGradients)
{
    constexpr std::int64_t n = 37;
    const auto ids = at::arange(1200, at::kLong)
                         .mul(11)
                         .remainder(n)
                         .mul(at::arange(1200, at::kLong).remainder(3).gt(0));  // row 0 more often than bfloat16 counts
    for (const auto type : {at::kBFloat16, at::kHalf}) {
        const auto rows = rounded(waves({n, 4}, 0.2), type), factors = rounded(waves({1200, 4}, 0.9).add(1), type);
        for (const int size : kNarrowRankCounts) {
            auto x0 = rows.to(at::kDouble).requires_grad_();
            (gather_rows(x0, ids.repeat({size})) * factors.to(at::kDouble).repeat({size, 1})).sum().backward();
            run_ranks(size, [&](const auto& mesh) {
                auto x = cut(rows, mesh).requires_grad_();
                (gather_rows(x, ids) * factors).sum().backward();
                EXPECT_TRUE(tensors_near(full_tensor(x.grad()).to(at::kDouble),
                                         rounded(x0.grad(), type).to(at::kDouble), rounding(type) * 1e-3))
                    << at::toString(type) << " on " << size;
            });
        }
    }
}

TEST(NarrowTypes, NeighborRowsAddUpTheirGradients)
{
    constexpr std::int64_t n = 300;
    const auto points =
        at::arange(n * 3, at::kDouble).mul(12.9898).sin().mul(43758.5453).frac().abs().view({n, 3}).to(at::kFloat);
    for (const auto type : {at::kBFloat16, at::kHalf}) {
        const auto features = rounded(waves({n, 5}, 0.6), type);
        auto f0 = features.to(at::kDouble).requires_grad_();
        const auto whole = knn(points, points, 9);
        segment_reduce(gather_neighbors(f0, whole), whole.offsets, SegmentReduction::Sum)
            .values.square()
            .sum()
            .backward();
        for (const int size : kNarrowRankCounts) {
            for (const auto& [name, owners] : point_partitions(points, size)) {
                run_ranks(size, [&, &owners = owners](const auto& mesh) {
                    const CutPoints rows(owners, mesh);
                    const auto p = rows.cut(points);
                    auto f = rows.cut(features).requires_grad_();
                    const auto found = knn(p, p, 9);
                    segment_reduce(gather_neighbors(f, found), found.offsets, SegmentReduction::Sum)
                        .values.square()
                        .sum()
                        .backward();
                    // Sums, squares, own rows and ghosts are rounded one after the other.
                    EXPECT_TRUE(
                        tensors_near(local_of(f.grad()).to(at::kDouble), rows.of(f0.grad()), 6 * rounding(type)))
                        << at::toString(type) << ", " << name << ", " << size;

                    // What every rank holds, of which each uses a part.
                    auto shared = features.clone().requires_grad_();
                    const auto among_whole = knn(points, p, 9);
                    segment_reduce(gather_neighbors(shared, among_whole), among_whole.offsets, SegmentReduction::Sum)
                        .values.square()
                        .sum()
                        .backward();
                    EXPECT_TRUE(tensors_near(shared.grad().to(at::kDouble), f0.grad(), 6 * rounding(type)))
                        << at::toString(type) << ", " << name << ", " << size;
                });
            }
        }
    }
}

TEST(NarrowTypes, GhostsAreAddedToTheirOwnersOnce)
{
    for (const int size : {2, 3, 4}) {
        run_ranks(size, [&](const auto& mesh) {
            // Rank 0 owns a row that all others see: 256 and ones, which bfloat16 would drop one by one.
            const auto rank = mesh->all().rank();
            std::vector<std::int64_t> send(size, 0), receive(size, 0), rows;
            if (rank == 0) {
                for (int r = 1; r < size; ++r) send[r] = 1;
                rows.assign(size - 1, 0);
            } else {
                receive[0] = 1;
            }
            const auto plan = std::make_shared<const ExchangePlan>(mesh->group(0), 1, rows, send, receive);
            auto local = at::ones({plan->num_local(), 2}, at::kBFloat16);
            if (rank == 0) local.fill_(256);
            const auto sum = scatter_ghosts(local, plan);
            EXPECT_TRUE(at::equal(sum, at::full({1, 2}, rank == 0 ? 256.0 + size - 1 : 1.0, at::kBFloat16))) << sum;
        });
    }
}

}  // namespace
}  // namespace meshard
