// SPDX-License-Identifier: Apache-2.0
#include "ops/rows/row_gather.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/owner_maps.h"
#include "tests/support/point_partitions.h"
#include "tests/support/rank_counts.h"
#include "tests/support/row_ids.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <set>

namespace meshard {
namespace {

TEST(RowGather, GathersAndScattersByGlobalId)
{
    std::mt19937_64 random(9);
    for (int trial = 0; trial < 56; ++trial) {
        const int ranks = kRankCounts[trial % 7];
        const auto n = static_cast<std::int64_t>(1 + random() % 20);
        std::vector<int> owners(n);
        for (auto& owner : owners) owner = static_cast<int>(random() % ranks);
        std::vector<at::Tensor> ids, values;
        for (int r = 0; r < ranks; ++r) {
            std::vector<std::int64_t> own;
            for (int i = static_cast<int>(random() % 9); i > 0; --i)
                own.push_back(static_cast<std::int64_t>(random() % n));
            ids.push_back(at::tensor(own, at::kLong));
            values.push_back(at::randint(0, 3, {static_cast<std::int64_t>(own.size()), 2}, at::kDouble));  // ties
        }
        const auto whole = at::randint(0, 3, {n, 2}, at::kDouble), factors = at::rand({n, 2}, at::kDouble);
        // Serially.
        auto x0 = whole.clone().requires_grad_(), v0 = at::cat(values).requires_grad_();
        const auto all_ids = at::cat(ids);
        const auto gathered = gather_rows(x0, all_ids), added = scatter_add(x0, all_ids, v0);
        (gathered.sum() + (added * factors).sum()).backward();
        EXPECT_TRUE(at::equal(gathered, whole.index_select(0, all_ids)));
        EXPECT_TRUE(tensors_near(added.detach(), whole.index_add(0, all_ids, v0.detach()), 1e-15));

        SCOPED_TRACE("trial " + std::to_string(trial));
        run_ranks(ranks, [&](const auto& mesh) {
            const auto rank = static_cast<int>(mesh->coordinate(0));
            const auto map = owned(owners, rank);
            const auto own = ids_of(*map);
            auto x = from_local(whole.index_select(0, own), shard_spec(map, mesh)).requires_grad_();
            auto v = values[rank].clone().requires_grad_();

            const auto found = gather_rows(x, ids[rank]), sum = scatter_add(x, ids[rank], v);
            (found.sum() + (to_local(sum) * factors.index_select(0, own)).sum()).backward();

            EXPECT_TRUE(at::equal(found.detach(), whole.index_select(0, ids[rank])));
            EXPECT_TRUE(tensors_near(local_of(sum), added.detach().index_select(0, own), 1e-15));
            EXPECT_TRUE(tensors_near(local_of(x.grad()), x0.grad().index_select(0, own), 1e-14));
            std::int64_t before = 0;
            for (int r = 0; r < rank; ++r) before += ids[r].numel();
            EXPECT_TRUE(tensors_near(v.grad(), v0.grad().narrow(0, before, ids[rank].numel()), 1e-14));
        });
    }
}

TEST(RowGather, OfWhatEveryRankHasGivesTheGradientOfTheWhole)
{
    const auto whole = at::rand({5, 2}, at::kDouble), factors = at::rand({7, 2}, at::kDouble);
    const auto ids = at::tensor({4, 0, 0, 2, 1, 4, 4}, at::kLong);
    auto x0 = whole.clone().requires_grad_();
    (x0.index_select(0, ids) * factors).sum().backward();
    run_ranks(3, [&](const auto& mesh) {
        const std::vector<std::int64_t> extents{4, 0, 3};
        const auto own = [&](const at::Tensor& rows) {
            return from_local(rows.split_with_sizes(extents)[mesh->coordinate(0)].clone(), mesh, {Shard(0)});
        };
        for (const bool is_plain : {true, false}) {
            auto leaf = whole.clone();
            if (!is_plain) leaf = from_local(leaf, mesh, {Replicate()});
            leaf.requires_grad_();
            const auto found = gather_rows(leaf, own(ids));
            EXPECT_TRUE(at::equal(full_tensor(found).detach(), whole.index_select(0, ids)));
            (found * own(factors)).sum().backward();
            EXPECT_TRUE(tensors_near(full_tensor(leaf.grad()), x0.grad(), 1e-15)) << is_plain;
        }
    });
}

TEST(RowGather, MovesEachRemoteRowOnce)
{
    run_ranks(3, [](const auto& mesh) {
        const auto rank = mesh->coordinate(0);
        const auto x = from_local(at::ones({100, 64}), mesh, {Shard(0)});
        const auto ids = (at::arange(5000, at::kLong) % 300);
        mesh->counter().reset();

        gather_rows(x, ids);

        EXPECT_EQ(mesh->counter().calls().back().operation, "all_to_all");
        EXPECT_EQ(mesh->counter().calls().back().bytes, 200 * 64 * 4);
        const auto cut_ids = from_local(at::arange(rank, at::kLong), mesh, {Shard(0)});
        EXPECT_EQ(*spec_of(gather_rows(x, cut_ids)), *spec_of(cut_ids));
    });
}

TEST(AcceptanceA16, RowsByIdAreThoseOfTheWholeOnEveryPartitionAndTravelOnce)
{
    const auto points = at::arange(150, at::kDouble).mul(12.9898).sin().mul(43758.5453).frac().abs().view({50, 3});
    const auto whole = at::arange(100, at::kDouble).mul(0.7).sin().view({50, 2}),
               factors = at::arange(100, at::kDouble).cos().view({50, 2});
    for (const int ranks : kRankCounts) {
        // Every rank wants some rows several times, and one of them none.
        std::vector<at::Tensor> ids, values;
        for (int r = 0; r < ranks; ++r) {
            ids.push_back(
                at::arange(r == 1 ? 0 : 40, at::kLong).mul(7 + r).add(3 * r).remainder(50 - 3 * r).contiguous());
            values.push_back(at::arange(ids[r].numel() * 2, at::kDouble).add(r).mul(1.3).sin().view({-1, 2}));
        }
        const auto all_ids = at::cat(ids), all_values = at::cat(values);
        const auto sums = whole.index_add(0, all_ids, all_values);
        auto w0 = whole.clone().requires_grad_(), v0 = all_values.clone().requires_grad_();
        (w0.index_select(0, all_ids).sin().sum() + (w0.index_add(0, all_ids, v0).cos() * factors).sum()).backward();
        for (const auto& [name, owners] : point_partitions(points, ranks)) {
            SCOPED_TRACE(name + " partition, " + std::to_string(ranks) + " ranks");
            run_ranks(ranks, [&, &owners = owners](const auto& mesh) {
                const auto rank = static_cast<int>(mesh->coordinate(0));
                const CutPoints rows(owners, mesh);
                auto x = rows.cut(whole).requires_grad_();
                auto v = values[rank].clone().requires_grad_();
                std::set<std::int64_t> remote;
                for (std::int64_t i = 0; i < ids[rank].numel(); ++i) {
                    const auto id = ids[rank][i].template item<std::int64_t>();
                    if (owners[id] != rank) remote.insert(id);
                }
                mesh->counter().reset();

                const auto found = gather_rows(x, ids[rank]);

                EXPECT_TRUE(at::equal(found.detach(), whole.index_select(0, ids[rank])));
                if (ranks > 1) {
                    EXPECT_EQ(mesh->counter().calls().back().bytes, static_cast<std::int64_t>(remote.size()) * 2 * 8);
                }
                const auto sum = scatter_add(x, ids[rank], v);
                EXPECT_TRUE(tensors_near(local_of(sum.detach()), rows.of(sums), 1e-14));
                (found.sin().sum() + (to_local(sum).cos() * rows.of(factors)).sum()).backward();
                EXPECT_TRUE(tensors_near(local_of(x.grad()), rows.of(w0.grad()), 1e-13));
                std::int64_t before = 0;
                for (int r = 0; r < rank; ++r) before += ids[r].numel();
                EXPECT_TRUE(tensors_near(v.grad(), v0.grad().narrow(0, before, ids[rank].numel()), 1e-13));
            });
        }
    }
}

TEST(AcceptanceA16, AnIdOutOfRangeOnOneRankRaisesOnAll)
{
    for (const int ranks : {2, 3, 8}) {
        for (int wrong = 0; wrong < ranks; wrong += ranks - 1) {
            run_ranks(ranks, [&](const auto& mesh) {
                const auto rank = static_cast<int>(mesh->coordinate(0));
                const auto x = from_local(at::ones({rank == 0 ? 0 : 2, 4}), mesh, {Shard(0)});
                const auto refuses = [&](const char* what, const auto& call) {
                    mesh->counter().reset();
                    EXPECT_TRUE(throws_with<InvalidInput>("Found by rank " + std::to_string(wrong), call)) << what;
                    EXPECT_LE(mesh->counter().num_calls(), 2) << what;  // that they agree
                };
                for (const std::int64_t bad : {std::int64_t{-1}, x.size(0), std::numeric_limits<std::int64_t>::max(),
                                               std::numeric_limits<std::int64_t>::min()}) {
                    const auto ids = at::full({1}, rank == wrong ? bad : 0, at::kLong), values = at::ones({1, 4});
                    refuses("gather", [&] { gather_rows(x, ids); });
                    refuses("add", [&] { scatter_add(x, ids, values); });
                    const auto cut_ids = from_local(ids, mesh, {Shard(0)});
                    refuses("gather of a whole by cut ids", [&] { gather_rows(at::ones({x.size(0), 4}), cut_ids); });
                }
                const auto zero = at::zeros({1}, at::kLong);
                refuses("ids of another type", [&] { gather_rows(x, zero.to(rank == wrong ? at::kInt : at::kLong)); });
                refuses("ids of two dimensions", [&] { gather_rows(x, rank == wrong ? zero.view({1, 1}) : zero); });
                refuses("too many values", [&] { scatter_add(x, zero, at::ones({rank == wrong ? 2 : 1, 4})); });
                refuses("values of another width", [&] { scatter_add(x, zero, at::ones({1, rank == wrong ? 3 : 4})); });
                refuses("values of another type",
                        [&] { scatter_add(x, zero, at::ones({1, 4}, rank == wrong ? at::kDouble : at::kFloat)); });
                const auto cut_zero = from_local(zero, mesh, {Shard(0)});
                refuses("values for a whole",
                        [&] { scatter_add(at::ones({3, 4}), cut_zero, at::ones({1, rank == wrong ? 3 : 4})); });
                EXPECT_EQ(gather_rows(x, zero).sum().template item<float>(), 4);  // and all can go on
            });
        }
    }
}

TEST(RowGather, RefusesIdsOutOfRangeOnEveryRank)
{
    run_ranks(3, [](const auto& mesh) {
        const auto rank = mesh->coordinate(0);
        const auto x = from_local(at::ones({2, 4}), mesh, {Shard(0)});
        for (const std::int64_t bad : {-1, 6}) {
            const auto ids = at::full({1}, rank == 1 ? bad : 0, at::kLong);
            EXPECT_THROW(gather_rows(x, ids), InvalidInput);
            EXPECT_THROW(scatter_add(x, ids, at::ones({1, 4})), InvalidInput);
        }
        EXPECT_THROW(gather_rows(x, at::zeros({1})), InvalidInput);
        EXPECT_THROW(scatter_add(x, at::zeros({1}, at::kLong), at::ones({rank == 0 ? 2 : 1, 4})), InvalidInput);
    });
    EXPECT_THROW(gather_rows(at::ones({3, 1}), at::full({1}, 3, at::kLong)), InvalidInput);
}

}  // namespace
}  // namespace meshard
