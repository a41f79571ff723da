// SPDX-License-Identifier: Apache-2.0
#include "ops/rows/ghost_exchange.h"
#include "partition/error.h"
#include "partition/ghosts/ghost_layer.h"
#include "sharding/exchange/merged_plan.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/rank_counts.h"
#include "tests/support/row_ids.h"
#include "tests/support/run_ranks.h"
#include "tests/support/test_device.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>

namespace meshard {
namespace {

/// A part's rows and the ghosts of one layer around them, in a ring of n rows with chords.
std::shared_ptr<IndexMap> map_with_ghosts(const Partition& partition, std::int32_t part, std::int32_t num_layers)
{
    const auto n = static_cast<std::int32_t>(partition.num_rows());
    Csr graph;
    for (std::int32_t i = 0; i < n; ++i) {
        std::vector<std::int32_t> row{(i + 1) % n, (i + n - 1) % n, (n - i) % n};
        std::sort(row.begin(), row.end());
        row.erase(std::unique(row.begin(), row.end()), row.end());
        std::erase(row, i);
        graph.push_row(row);
    }
    auto map = std::make_shared<IndexMap>();
    map->num_global = n;
    for (std::int32_t i = 0; i < n; ++i) {
        if (partition.owners[i] == part) map->global_ids.push_back(i);
    }
    map->num_owned = map->num_local();
    auto ghosts = ghost_layer(graph, partition, part, num_layers).rows;
    std::stable_sort(ghosts.begin(), ghosts.end(),
                     [&](auto a, auto b) { return partition.owners[a] < partition.owners[b]; });
    for (const auto ghost : ghosts) {
        map->global_ids.push_back(ghost);
        map->ghost_owners.push_back(partition.owners[ghost]);
    }
    return map;
}

Partition draw_partition(std::mt19937_64& random, std::int64_t n, int ranks)
{
    Partition partition{ranks, std::vector<std::int32_t>(n)};
    const auto used = 1 + static_cast<int>(random() % ranks);
    for (auto& owner : partition.owners) owner = static_cast<std::int32_t>(random() % used);
    if (random() % 2 == 0) std::sort(partition.owners.begin(), partition.owners.end());
    return partition;
}

/// Copies of each row on all ranks, the owner's included.
at::Tensor copies_of(const Partition& partition, std::int32_t num_layers)
{
    auto copies = at::zeros({partition.num_rows()}, at::kDouble);
    for (std::int32_t part = 0; part < partition.num_parts; ++part) {
        const auto map = map_with_ghosts(partition, part, num_layers);
        copies.index_add_(0, ids_of(*map), at::ones({map->num_local()}, at::kDouble));
    }
    return copies;
}

at::Tensor there(const at::Tensor& tensor)
{
    return tensor.to(device_of_tests());
}

TEST(GhostExchange, BringsOwnersValuesAndIsAdjoint)
{
    std::mt19937_64 random(3);
    for (int trial = 0; trial < 63; ++trial) {
        const int ranks = kRankCounts[trial % 7];
        const auto partition = draw_partition(random, 2 + random() % 30, ranks);
        const auto layers = static_cast<std::int32_t>(random() % 3);
        const auto n = partition.num_rows();
        const auto copies = copies_of(partition, layers);
        SCOPED_TRACE("trial " + std::to_string(trial));
        double forward = 0, reverse = 0;
        run_ranks(ranks, [&](const auto& mesh) {
            const auto map = map_with_ghosts(partition, static_cast<std::int32_t>(mesh->coordinate(0)), layers);
            const auto plan = ExchangePlan::find(*map, mesh->group(0));
            const auto whole = at::arange(n * 3, at::kDouble).mul(0.7).sin_().view({n, 3});
            auto x = there(whole.index_select(0, ids_of(*map).narrow(0, 0, map->num_owned))).requires_grad_();
            exchange_ghosts(x.detach(), plan);  // the first exchange begins with what each has
            mesh->counter().reset();

            const auto local = with_ghosts(x, plan);

            EXPECT_TRUE(at::equal(local.cpu(), whole.index_select(0, ids_of(*map))));
            EXPECT_EQ(mesh->counter().total_bytes(), ranks > 1 ? map->num_ghosts() * 3 * 8 : 0);
            const auto ones = scatter_ghosts(there(at::ones({map->num_local()}, at::kDouble)), plan);
            EXPECT_TRUE(at::equal(ones.cpu(), copies.index_select(0, ids_of(*map).narrow(0, 0, map->num_owned))));
            EXPECT_TRUE(tensors_near(scatter_ghosts(local.detach(), plan, GhostReduction::Mean), x.detach(), 1e-15));

            const auto y = there(at::arange(local.numel(), at::kDouble).add(mesh->coordinate(0)).cos_())
                               .view_as(local)
                               .requires_grad_();
            const auto back = scatter_ghosts(y, plan);
            local.backward(y.detach());
            EXPECT_TRUE(at::equal(x.grad(), back.detach()));
            back.backward(x.detach());
            EXPECT_TRUE(at::equal(y.grad(), local.detach()));
            auto products = at::stack({(local.detach() * y.detach()).sum(), (x.detach() * back.detach()).sum()});
            mesh->group(0).all_reduce(products);
            if (mesh->coordinate(0) == 0) {
                forward = products[0].template item<double>();
                reverse = products[1].template item<double>();
            }
        });
        EXPECT_NEAR(forward, reverse, 1e-12 * std::max(1.0, std::abs(forward)));
    }
}

TEST(GhostExchange, CarriesSeveralFieldsInOneMessage)
{
    std::mt19937_64 random(4);
    const auto partition = draw_partition(random, 40, 3);
    run_ranks(3, [&](const auto& mesh) {
        const auto map = map_with_ghosts(partition, static_cast<std::int32_t>(mesh->coordinate(0)), 1);
        const auto plan = ExchangePlan::find(*map, mesh->group(0));
        const auto ids = there(ids_of(*map)), owned = ids.narrow(0, 0, map->num_owned),
                   ghosts = ids.narrow(0, map->num_owned, map->num_ghosts());
        const auto factors = there(at::tensor({1.0f, 2.0f}));
        auto a = owned.to(at::kFloat).view({-1, 1}).mul(factors).requires_grad_();
        auto c = owned.to(at::kDouble).view({-1, 1, 1}).expand({-1, 2, 2}).clone().requires_grad_();
        exchange_ghosts(owned, plan);  // the first exchange begins with what each has
        mesh->counter().reset();

        const auto no_columns = c.detach().narrow(1, 0, 0);
        auto pending = begin_ghost_exchange({a, owned, no_columns, c}, plan);
        const auto found = pending.end();

        EXPECT_EQ(mesh->counter().num_calls(), 1);
        EXPECT_EQ(mesh->counter().total_bytes(), map->num_ghosts() * (2 * 4 + 8 + 4 * 8));
        EXPECT_TRUE(at::equal(found[0], ghosts.to(at::kFloat).view({-1, 1}).mul(factors)));
        EXPECT_TRUE(at::equal(found[1], ghosts));
        EXPECT_EQ(found[2].sizes(), (at::IntArrayRef{map->num_ghosts(), 0, 2}));
        EXPECT_TRUE(at::equal(found[3], ghosts.to(at::kDouble).view({-1, 1, 1}).expand({-1, 2, 2})));
        mesh->counter().reset();
        (found[0].sum().to(at::kDouble) * 3 + found[3].sum()).backward();
        EXPECT_EQ(mesh->counter().num_calls(), 1);
        const auto others =
            at::zeros({map->num_owned}, at::kFloat).index_add_(0, plan->sent_rows(), at::ones({plan->num_sent()}));
        EXPECT_TRUE(at::equal(a.grad().cpu(), others.mul(3).view({-1, 1}).expand({-1, 2})));
        EXPECT_TRUE(at::equal(c.grad().cpu(), others.to(at::kDouble).view({-1, 1, 1}).expand({-1, 2, 2})));
        EXPECT_THROW(pending.end(), InvalidInput);

        mesh->counter().reset();
        const auto narrow = begin_ghost_exchange({a.detach()}, plan, at::kBFloat16).end();
        EXPECT_EQ(mesh->counter().total_bytes(), map->num_ghosts() * 2 * 2);
        EXPECT_TRUE(at::equal(narrow[0], found[0].detach().to(at::kBFloat16).to(at::kFloat)));
    });
}

TEST(GhostExchange, TakesExtremesOverCopies)
{
    std::mt19937_64 random(5);
    for (int trial = 0; trial < 21; ++trial) {
        const int ranks = kRankCounts[trial % 7];
        const auto partition = draw_partition(random, 2 + random() % 20, ranks);
        const auto n = partition.num_rows();
        // What every rank brings for its rows: small integers, so that there are ties.
        std::vector<at::Tensor> brought;
        std::vector<std::shared_ptr<IndexMap>> maps;
        auto all = at::full({n, ranks}, -100.0, at::kDouble);
        for (int r = 0; r < ranks; ++r) {
            maps.push_back(map_with_ghosts(partition, r, 1));
            std::vector<double> values;
            for (int i = 0; i < maps[r]->num_local(); ++i) values.push_back(static_cast<double>(random() % 3));
            brought.push_back(at::tensor(values, at::kDouble));
            all.select(1, r).index_copy_(0, ids_of(*maps[r]), brought[r]);
        }
        all.requires_grad_();
        const auto expected = all.amax(1);  // shares gradients evenly too
        const auto factors = at::arange(n, at::kDouble).add(1);
        (expected * factors).sum().backward();
        run_ranks(ranks, [&](const auto& mesh) {
            const auto r = mesh->coordinate(0);
            const auto plan = ExchangePlan::find(*maps[r], mesh->group(0));
            auto x = there(brought[r].clone()).requires_grad_();
            const auto ids = ids_of(*maps[r]), own = ids.narrow(0, 0, maps[r]->num_owned);

            const auto most = scatter_ghosts(x, plan, GhostReduction::Max);
            (most * there(factors.index_select(0, own))).sum().backward();

            EXPECT_TRUE(at::equal(most.detach().cpu(), expected.detach().index_select(0, own)));
            EXPECT_TRUE(tensors_near(x.grad().cpu(), all.grad().select(1, r).index_select(0, ids), 1e-14));
            EXPECT_TRUE(at::equal(scatter_ghosts(x.detach().neg(), plan, GhostReduction::Min), most.detach().neg()));
        });
    }
}

TEST(GhostExchange, OfStackedPlansBringsTheGhostsOfAll)
{
    std::mt19937_64 random(6);
    for (int trial = 0; trial < 21; ++trial) {
        const int ranks = kRankCounts[trial % 7];
        const auto partition = draw_partition(random, 4 + random() % 30, ranks);
        run_ranks(ranks, [&](const auto& mesh) {
            const auto part = static_cast<std::int32_t>(mesh->coordinate(0));
            const auto narrow_map = map_with_ghosts(partition, part, 1), wide_map = map_with_ghosts(partition, part, 2);
            const std::vector<std::shared_ptr<const ExchangePlan>> plans{
                ExchangePlan::find(*narrow_map, mesh->group(0)), ExchangePlan::find(*wide_map, mesh->group(0))};
            const auto owned = ids_of(*wide_map).narrow(0, 0, wide_map->num_owned);

            const auto stacked = stack_plans(plans);  // two clouds of the same rows
            const auto both = exchange_ghosts(at::cat({owned, owned + 1000}), stacked.plan);
            EXPECT_TRUE(at::equal(both.index_select(0, stacked.ghost_places[0]),
                                  ids_of(*narrow_map).narrow(0, narrow_map->num_owned, narrow_map->num_ghosts())));
            EXPECT_TRUE(at::equal(both.index_select(0, stacked.ghost_places[1]) - 1000,
                                  ids_of(*wide_map).narrow(0, wide_map->num_owned, wide_map->num_ghosts())));
        });
    }
    EXPECT_THROW(stack_plans({}), InvalidInput);
}

/// What each rank shows its neighbours is wrong on rank 0 only.
TEST(GhostExchange, RefusesOnEveryRankWhatOneFindsWrongAtFirst)
{
    for (const int size : {2, 3}) {
        run_ranks(size, [&](const auto& mesh) {
            const Partition partition{size, {0, 0, 1, 1, 0, 1, size - 1, 0}};
            const auto rank = static_cast<std::int32_t>(mesh->coordinate(0));
            const auto map = map_with_ghosts(partition, rank, 1);
            const auto plan = ExchangePlan::find(*map, mesh->group(0));
            const std::int64_t wrong = rank == 0 ? 1 : 0;
            EXPECT_THROW(exchange_ghosts(at::ones({map->num_owned + wrong, 2}), plan), InvalidInput);
            EXPECT_THROW(begin_ghost_exchange({at::ones({map->num_owned})}, plan, at::kInt), InvalidInput);
            EXPECT_THROW(scatter_ghosts(at::ones({map->num_local() + wrong}), plan), InvalidInput);
            EXPECT_THROW(scatter_ghosts(at::ones({map->num_local() + wrong}), plan, GhostReduction::Mean),
                         InvalidInput);
            EXPECT_THROW(exchange_ghosts(at::ones({map->num_owned, 2 + wrong}), plan),
                         InvalidInput);  // rows of another width
            EXPECT_THROW(exchange_ghosts(at::ones({map->num_owned}, rank == 0 ? at::kDouble : at::kFloat), plan),
                         InvalidInput);

            const auto ids = ids_of(*map);  // all is well yet
            EXPECT_TRUE(at::equal(with_ghosts(ids.narrow(0, 0, map->num_owned), plan), ids));
        });
    }
}

TEST(GhostExchange, NobodyWaitsForARankWhoseRowsAreWrongLater)
{
    for (const int size : {2, 3}) {
        run_ranks(size, [&](const auto& mesh) {
            const Partition partition{size, {0, 0, 1, 1, 0, 1, size - 1, 0}};
            const auto rank = static_cast<std::int32_t>(mesh->coordinate(0));
            const auto map = map_with_ghosts(partition, rank, 1);
            const auto plan = ExchangePlan::find(*map, mesh->group(0));
            const auto ids = ids_of(*map), owned = ids.narrow(0, 0, map->num_owned);
            EXPECT_TRUE(at::equal(with_ghosts(owned, plan), ids));
            const auto begin = std::chrono::steady_clock::now();
            if (rank == 0)
                EXPECT_THROW(with_ghosts(at::ones({map->num_owned + 1}, at::kLong), plan), InvalidInput);
            else
                EXPECT_THROW(with_ghosts(owned, plan), Error);
            EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10))
                << "rank " << rank << " has waited";
        });
    }
}

TEST(GhostExchange, RefusesOnEveryRank)
{
    const Partition partition{3, {0, 0, 1, 1, 2, 2, 0, 1}};
    run_ranks(3, [&](const auto& mesh) {
        const auto rank = static_cast<std::int32_t>(mesh->coordinate(0));
        auto map = map_with_ghosts(partition, rank, 1);
        const auto plan = ExchangePlan::find(*map, mesh->group(0));
        EXPECT_THROW(with_ghosts(at::ones({map->num_owned + 1}), plan), InvalidInput);
        EXPECT_THROW(scatter_ghosts(at::ones({map->num_owned}), plan), InvalidInput);
        if (rank == 1) map->ghost_owners.back() = map->ghost_owners.back() == 0 ? 2 : 0;
        EXPECT_THROW(ExchangePlan::find(*map, mesh->group(0)), InvalidInput);
        if (rank == 1) map->ghost_owners.back() = 7;
        EXPECT_THROW(ExchangePlan::find(*map, mesh->group(0)), InvalidInput);
    });
}

}  // namespace
}  // namespace meshard
