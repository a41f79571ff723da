// SPDX-License-Identifier: Apache-2.0
#include "partition/cut/partition.h"
#include "partition/error.h"
#include "sharding/exchange/row_routes.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/rank_counts.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace meshard {
namespace {

/// A partition of n rows: any owners, with parts that own nothing; every third one in contiguous ranges.
Partition draw_partition(std::mt19937_64& random, std::int64_t n, int ranks)
{
    Partition partition{ranks, std::vector<std::int32_t>(n)};
    const auto used = 1 + static_cast<int>(random() % ranks);
    for (auto& owner : partition.owners) owner = static_cast<std::int32_t>((random() % used * 5 + 1) % ranks);
    if (random() % 3 == 0) std::sort(partition.owners.begin(), partition.owners.end());
    return partition;
}

std::shared_ptr<const IndexMap> map_of(const Partition& partition, std::int32_t part)
{
    auto map = std::make_shared<IndexMap>();
    map->num_global = partition.num_rows();
    for (std::int64_t i = 0; i < partition.num_rows(); ++i) {
        if (partition.owners[i] == part) map->global_ids.push_back(i);
    }
    map->num_owned = static_cast<std::int32_t>(map->global_ids.size());
    return map;
}

at::Tensor ids_of(const IndexMap& map)
{
    return at::tensor(map.global_ids, at::kLong);
}

at::Tensor values(c10::IntArrayRef shape)
{
    return at::arange(c10::multiply_integers(shape), at::kDouble).mul(0.7).sin_().view(shape);
}

TEST(RowRoutes, WholesAreInTheOrderOfGlobalIds)
{
    std::mt19937_64 random(1);
    for (int trial = 0; trial < 200; ++trial) {
        const auto ranks = kRankCounts[trial % 7];
        const std::int64_t n = random() % 12, dim = random() % 2;
        const auto partition = draw_partition(random, n, ranks);
        SCOPED_TRACE("trial " + std::to_string(trial) + ", " + std::to_string(n) + " rows on " + std::to_string(ranks) +
                     " ranks");
        run_ranks(ranks, [&](const auto& mesh) {
            const auto shape = dim == 0 ? std::vector<std::int64_t>{n, 2, 3} : std::vector<std::int64_t>{2, n, 3};
            const auto whole = values(shape), factors = values(shape).add(2);
            const auto map = map_of(partition, static_cast<std::int32_t>(mesh->coordinate(0)));
            auto x = from_local(whole.index_select(dim, ids_of(*map)), shard_spec(map, mesh, dim)).requires_grad_();

            EXPECT_TRUE(at::equal(full_tensor_in_global_order(x), whole));
            (full_tensor_in_global_order(x) * factors).sum().backward();
            ASSERT_TRUE(is_sharded(x.grad()));
            EXPECT_TRUE(at::equal(local_of(x.grad()), factors.index_select(dim, ids_of(*map))));
        });
    }
}

TEST(RowRoutes, GathersAndScattersByAnyIds)
{
    std::mt19937_64 random(2);
    for (int trial = 0; trial < 200; ++trial) {
        const auto ranks = kRankCounts[trial % 7];
        const std::int64_t n = 1 + random() % 10;
        const auto partition = draw_partition(random, n, ranks);
        std::vector<std::vector<std::int64_t>> wanted(ranks);
        for (auto& ids : wanted) {
            ids.resize(random() % 8);
            for (auto& id : ids) id = static_cast<std::int64_t>(random() % n);
        }
        SCOPED_TRACE("trial " + std::to_string(trial));
        run_ranks(ranks, [&](const auto& mesh) {
            const auto rank = static_cast<std::int32_t>(mesh->coordinate(0));
            const auto map = map_of(partition, rank);
            const auto whole = values({n, 3});
            const auto routes = RowRoutes::find(map->owned(), wanted[rank], n, mesh->group(0));
            auto rows = whole.index_select(0, ids_of(*map)).requires_grad_();
            mesh->counter().reset();

            const auto found = routes->gather(rows);

            EXPECT_TRUE(at::equal(found, whole.index_select(0, at::tensor(wanted[rank], at::kLong))));
            std::vector<std::int64_t> remote;  // each once
            for (const auto id : wanted[rank]) {
                if (partition.owners[id] != rank) remote.push_back(id);
            }
            std::sort(remote.begin(), remote.end());
            remote.erase(std::unique(remote.begin(), remote.end()), remote.end());
            EXPECT_EQ(mesh->counter().num_calls(), ranks > 1 ? 1 : 0);
            EXPECT_EQ(mesh->counter().total_bytes(), static_cast<std::int64_t>(remote.size() * 3 * 8));

            // <gather x, w> = <x, scatter w>, with integers so that every order of sums is exact.
            auto weights = at::arange(static_cast<std::int64_t>(wanted[rank].size()) * 3, at::kDouble)
                               .view({-1, 3})
                               .add(rank)
                               .requires_grad_();
            auto sums = at::zeros({n, 3}, at::kDouble);
            for (int r = 0; r < ranks; ++r) {
                const auto w =
                    at::arange(static_cast<std::int64_t>(wanted[r].size()) * 3, at::kDouble).view({-1, 3}).add(r);
                sums.index_add_(0, at::tensor(wanted[r], at::kLong), w);
            }
            found.backward(weights.detach());
            EXPECT_TRUE(at::equal(rows.grad(), sums.index_select(0, ids_of(*map))));
            const auto scattered = routes->scatter(weights);
            EXPECT_TRUE(at::equal(scattered, rows.grad()));
            scattered.backward(rows.detach());
            EXPECT_TRUE(at::equal(weights.grad(), found.detach()));
        });
    }
}

TEST(RowRoutes, RefusesWrongIdsOnEveryRank)
{
    run_ranks(3, [](const auto& mesh) {
        const auto rank = mesh->coordinate(0);
        const auto& group = mesh->group(0);
        const std::vector<std::int64_t> own{2 * rank, 2 * rank + 1};
        const auto only_on = [&](std::int64_t r, std::int64_t id) {
            return rank == r ? std::vector<std::int64_t>{id} : std::vector<std::int64_t>{};
        };
        EXPECT_THROW(RowRoutes::find(own, only_on(1, 6), 6, group), InvalidInput);
        EXPECT_THROW(RowRoutes::find(own, only_on(2, -1), 6, group), InvalidInput);
        EXPECT_THROW(RowRoutes::find(only_on(0, 7), only_on(2, 0), 6, group), InvalidInput);
        EXPECT_THROW(RowRoutes::find(own, only_on(0, 6), 7, group), InvalidInput);  // nobody's
        EXPECT_THROW(RowRoutes::find(rank == 2 ? std::vector<std::int64_t>{4, 0} : own, only_on(0, 1), 6, group),
                     InvalidInput);                                         // twice
        const auto routes = RowRoutes::find(own, only_on(0, 5), 6, group);  // all ranks are still in step
        EXPECT_THROW(routes->gather(at::zeros({3})), InvalidInput);
        EXPECT_THROW(routes->scatter(at::zeros({7})), InvalidInput);
    });
}

TEST(RowRoutes, RefusesMapsThatDoNotFitTheTensor)
{
    run_ranks(2, [](const auto& mesh) {
        const Partition partition{2, {0, 1, 1, 0, 1}};
        const auto map = map_of(partition, static_cast<std::int32_t>(mesh->coordinate(0)));
        const auto x = from_local(at::zeros({map->num_owned, 2}), shard_spec(map, mesh));
        const auto even = redistribute(redistribute(x, {Replicate()}), {Shard(0)});
        EXPECT_THROW(full_tensor_in_global_order(even), InvalidInput);  // 3 + 2 rows, the map says 2 + 3
        EXPECT_TRUE(at::equal(full_tensor_in_global_order(from_local(at::ones({2}), mesh, {Shard(0)})), at::ones({4})));
    });
}

TEST(Redistribute, ReachesAnyChosenExtents)
{
    std::mt19937_64 random(3);
    const auto extents = [&](std::int64_t n, int ranks) {
        auto e = std::make_shared<Extents>(ranks, 0);
        for (std::int64_t i = 0; i < n; ++i) ++(*e)[random() % ranks];
        return e;
    };
    for (int trial = 0; trial < 200; ++trial) {
        const auto ranks = kRankCounts[trial % 7];
        const std::int64_t n = random() % 9,
                           m = 1 + random() % 3;  // more ranks than rows, a dimension shorter than the mesh
        const AxisLayout a{Shard(0), extents(n, ranks), 1};
        const std::vector<AxisLayout> targets{{Shard(0), extents(n, ranks), 1}, {Shard(1), extents(m, ranks), 1}, {}};
        run_ranks(ranks, [&](const auto& mesh) {
            const auto whole = values({n, m});
            const auto rank = mesh->coordinate(0);
            auto x =
                from_local(whole.narrow(0, a.offset(rank), (*a.extents)[rank]), make_spec(mesh, {a})).requires_grad_();
            for (const auto& target : targets) {
                const auto y = redistribute(x, make_spec(mesh, {target}));
                EXPECT_TRUE(spec_of(y)->axes[0] == target);
                EXPECT_TRUE(at::equal(full_tensor(y), whole));
                x.mutable_grad() = at::Tensor();
                (full_tensor(y) * whole).sum().backward();
                EXPECT_TRUE(*spec_of(x.grad()) == *spec_of(x));
                EXPECT_TRUE(at::equal(full_tensor(x.grad()), whole));
            }
            // Infers the same layout by asking.
            EXPECT_TRUE(*spec_of(from_local(local_of(x).detach(), mesh, {Shard(0)})) == *spec_of(x));
        });
    }
}

}  // namespace
}  // namespace meshard
