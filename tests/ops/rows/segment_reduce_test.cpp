// SPDX-License-Identifier: Apache-2.0
#include "ops/neighbors/neighbors.h"
#include "ops/rows/segment_reduce.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/owner_maps.h"
#include "tests/support/row_ids.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace meshard {
namespace {

TEST(SegmentReduce, EqualsARowByRowLoop)
{
    std::mt19937_64 random(3);
    for (int trial = 0; trial < 40; ++trial) {
        std::vector<std::int64_t> offsets{0};
        for (int i = static_cast<int>(random() % 6); i > 0; --i)
            offsets.push_back(offsets.back() + static_cast<std::int64_t>(random() % 4));
        auto values = at::empty({offsets.back(), 3}, at::kDouble);
        for (std::int64_t i = 0; i < values.numel(); ++i)
            values.view({-1})[i] = static_cast<double>(random() % 5) - 2;  // ties
        values.requires_grad_();
        const auto table = at::tensor(offsets, at::kLong);
        const auto num_rows = static_cast<std::int64_t>(offsets.size()) - 1;
        const auto weights = at::arange(num_rows * 3, at::kDouble).add(1).view({num_rows, 3});
        for (const auto reduction :
             {SegmentReduction::Sum, SegmentReduction::Mean, SegmentReduction::Max, SegmentReduction::Min}) {
            auto expected_gradient = at::zeros_like(values);
            const auto result = segment_reduce(values, table, reduction);
            for (std::int64_t r = 0; r < num_rows; ++r) {
                const auto count = offsets[r + 1] - offsets[r];
                const auto rows = values.detach().narrow(0, offsets[r], count);
                if (count == 0) {
                    EXPECT_TRUE(at::equal(result.values.detach()[r], at::zeros({3}, at::kDouble)));
                    continue;
                }
                auto share = expected_gradient.narrow(0, offsets[r], count);
                if (reduction == SegmentReduction::Sum || reduction == SegmentReduction::Mean) {
                    const double divisor = reduction == SegmentReduction::Sum ? 1.0 : static_cast<double>(count);
                    EXPECT_TRUE(tensors_near(result.values.detach()[r], rows.sum(0) / divisor, 1e-15));
                    share.copy_(weights[r].expand_as(share) / divisor);
                    continue;
                }
                const auto extreme = reduction == SegmentReduction::Max ? rows.amax(0) : rows.amin(0);
                EXPECT_TRUE(at::equal(result.values.detach()[r], extreme));
                for (std::int64_t c = 0; c < 3; ++c) {
                    std::int64_t first = 0;
                    while (rows[first][c].item<double>() != extreme[c].item<double>()) ++first;
                    EXPECT_EQ(result.arguments[r][c].item<std::int64_t>(), offsets[r] + first);
                    share[first][c] = weights[r][c];
                }
            }
            values.mutable_grad() = at::Tensor();
            (result.values * weights).sum().backward();
            EXPECT_TRUE(tensors_near(values.grad(), expected_gradient, 1e-15));
        }
        const auto soft = segment_softmax(values, table);
        for (std::int64_t r = 0; r < num_rows; ++r) {
            const auto count = offsets[r + 1] - offsets[r];
            EXPECT_TRUE(tensors_near(soft.detach().narrow(0, offsets[r], count),
                                     values.detach().narrow(0, offsets[r], count).softmax(0), 1e-14));
        }
    }
}

TEST(SegmentReduce, ExtremesOfRowsWithNaNAreNaN)
{
    const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
    // Rows: NaN first, last, in between, alone, twice, beside infinities; none; no entries.
    const auto values =
        at::tensor({nan, 1., 2., 2., 1., nan, 3., nan, 4., nan, 5., nan, nan, inf, nan, -inf, 7., 6.}, at::kDouble)
            .view({18, 1});
    const auto offsets = at::tensor({0, 3, 6, 9, 10, 13, 16, 18, 18}, at::kLong);
    const std::int64_t first_nan[] = {0, 5, 7, 9, 11, 14};
    for (const auto type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
        for (const auto reduction : {SegmentReduction::Max, SegmentReduction::Min}) {
            auto x = values.to(type).clone().requires_grad_();

            const auto found = segment_reduce(x, offsets, reduction);

            for (std::int64_t row = 0; row < 6; ++row) {
                const auto entries =
                    x.detach().narrow(0, offsets[row].item<std::int64_t>(),
                                      offsets[row + 1].item<std::int64_t>() - offsets[row].item<std::int64_t>());
                EXPECT_TRUE((reduction == SegmentReduction::Max ? entries.amax() : entries.amin())
                                .isnan()
                                .item<bool>());  // as LibTorch's are
                EXPECT_TRUE(found.values[row].isnan().item<bool>()) << "row " << row << " of " << at::toString(type);
                EXPECT_EQ(found.arguments[row].item<std::int64_t>(), first_nan[row])
                    << "row " << row << " of " << at::toString(type);
            }
            EXPECT_EQ(found.values[6].item<double>(), reduction == SegmentReduction::Max ? 7 : 6);
            EXPECT_EQ(found.arguments[7].item<std::int64_t>(), -1);
            found.values.narrow(0, 6, 1).sum().backward();
            EXPECT_EQ(x.grad().abs().sum().item<double>(), 1);
        }
        const auto soft = segment_softmax(values.to(type), offsets);
        EXPECT_TRUE(soft.narrow(0, 0, 16).isnan().all().item<bool>());
        EXPECT_FALSE(soft.narrow(0, 16, 2).isnan().any().item<bool>());
    }
}

TEST(SegmentReduce, RefusesOffsetsThatDoNotFit)
{
    const auto values = at::ones({4, 2});
    for (const auto& offsets : {std::vector<std::int64_t>{0, 3}, {1, 4}, {0, 3, 2, 4}, {}}) {
        EXPECT_THROW(segment_reduce(values, at::tensor(offsets, at::kLong), SegmentReduction::Sum), InvalidInput);
        EXPECT_THROW(segment_softmax(values, at::tensor(offsets, at::kLong)), InvalidInput);
    }
}

/// Eight layers of messages along the edges of a neighbour graph; `wrap` makes a layer's own rows a tensor that lies as
/// the points do.
template <class Wrap>
at::Tensor messages(const Neighbors& graph, at::Tensor own, const at::Tensor& weight, const Wrap& wrap)
{
    for (int layer = 0; layer < 8; ++layer) {
        const auto sent = gather_neighbors(wrap(own), graph);
        const auto attention = segment_softmax(sent.sum(1, true), graph.offsets);
        const auto mixed = segment_reduce(sent * attention, graph.offsets, SegmentReduction::Sum).values;
        const auto largest = segment_reduce(sent, graph.offsets, SegmentReduction::Max).values;
        own = own +
              (mixed.mm(weight) + largest - segment_reduce(sent, graph.offsets, SegmentReduction::Mean).values).tanh();
    }
    return own;
}

TEST(SegmentReduce, PassesMessagesAcrossCutsAsSerially)
{
    const auto points = at::arange(60 * 3, at::kDouble).mul(12.9898).sin().mul(43758.5453).frac().view({60, 3});
    const auto features = at::arange(60 * 4, at::kDouble).mul(0.37).sin().view({60, 4});
    const auto initial = at::arange(16, at::kDouble).mul(0.9).cos().mul(0.3).view({4, 4});
    auto f0 = features.clone().requires_grad_(), w0 = initial.clone().requires_grad_();
    const auto serial = messages(knn(points, points, 6), f0, w0, [](const at::Tensor& x) { return x; });
    serial.square().sum().backward();
    for (const int ranks : {1, 2, 3, 5, 8}) {
        std::vector<int> owners(60);  // uneven, the last rank of many empty
        for (int i = 0; i < 60; ++i) owners[i] = i * i % 7 % std::max(1, ranks - (ranks > 2));
        run_ranks(ranks, [&](const auto& mesh) {
            const auto map = owned(owners, static_cast<int>(mesh->coordinate(0)));
            const auto spec = shard_spec(map, mesh);
            const auto cut = from_local(points.index_select(0, ids_of(*map)), spec);
            auto f = features.index_select(0, ids_of(*map)).requires_grad_(), w = initial.clone().requires_grad_();

            const auto found =
                messages(knn(cut, cut, 6), f, w, [&](const at::Tensor& x) { return from_local(x, spec); });
            found.square().sum().backward();

            auto weight_gradient = w.grad().defined() ? w.grad().clone() : at::zeros_like(w);
            mesh->group(0).all_reduce(weight_gradient);
            EXPECT_TRUE(tensors_near(found.detach(), serial.detach().index_select(0, ids_of(*map)), 1e-12));
            EXPECT_TRUE(tensors_near(f.grad(), f0.grad().index_select(0, ids_of(*map)), 1e-10));
            EXPECT_TRUE(tensors_near(weight_gradient, w0.grad(), 1e-10));
        });
    }
}

}  // namespace
}  // namespace meshard
