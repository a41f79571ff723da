// SPDX-License-Identifier: Apache-2.0
#include "partition/error.h"
#include "sharding/exchange/row_routes.h"
#include "sharding/tensor/distribute_rows.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/owner_maps.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace meshard {
namespace {

at::Tensor counted_values(c10::IntArrayRef shape)
{
    return at::arange(c10::multiply_integers(shape), at::kDouble).mul(0.7).sin_().view(shape);
}

AxisLayout draw_shard(std::mt19937_64& random, std::int64_t dim, std::int64_t n, std::int64_t ranks,
                      std::int64_t blocks = 1)
{
    auto extents = std::make_shared<Extents>(ranks, 0);
    for (std::int64_t i = 0; i < n / blocks; ++i) ++(*extents)[random() % ranks];
    return {Shard(dim), extents, blocks};
}

TEST(ScatterRows, GivesEveryRankItsPartFromAnySource)
{
    std::mt19937_64 random(1);
    for (int trial = 0; trial < 200; ++trial) {
        const std::int64_t ranks = std::vector<std::int64_t>{1, 2, 3, 4, 5, 7, 8}[trial % 7], blocks = 1 + random() % 2,
                           n = blocks * (random() % 7);
        const auto source = static_cast<int>(random() % ranks);
        const auto dim = static_cast<std::int64_t>(random() % 2);
        const auto layout = random() % 5 == 0 ? AxisLayout{} : draw_shard(random, dim, n, ranks, blocks);
        run_ranks(static_cast<int>(ranks), [&](const auto& mesh) {
            const auto whole =
                counted_values(dim == 0 ? std::vector<std::int64_t>{n, 2} : std::vector<std::int64_t>{2, n});
            auto mine = mesh->coordinate(0) == source ? whole.clone().requires_grad_() : at::Tensor();

            const auto x = distribute_rows(mine, source, make_spec(mesh, {layout}));

            EXPECT_TRUE(at::equal(full_tensor(x), whole));
            (full_tensor(x * 2) * whole).sum().backward();
            if (mine.defined()) {
                EXPECT_TRUE(at::equal(mine.grad(), whole * 2));
            }
        });
    }
}

TEST(ScatterRows, CutsTwoDimensionsOnTwoAxes)
{
    std::mt19937_64 random(2);
    for (int trial = 0; trial < 60; ++trial) {
        const std::vector<std::int64_t> shape =
            std::vector<std::vector<std::int64_t>>{{2, 2}, {1, 3}, {3, 2}, {2, 1}}[trial % 4];
        const std::int64_t n = random() % 6, m = random() % 6;
        const auto source = static_cast<int>(random() % (shape[0] * shape[1]));
        std::vector<AxisLayout> axes{draw_shard(random, 1, m, shape[0]), draw_shard(random, 0, n, shape[1])};
        if (trial % 3 == 1) axes[0] = {};
        run_ranks(shape, {"data", "domain"}, [&](const auto& mesh) {
            const auto whole = counted_values({n, m, 2});
            auto mine = mesh->all().rank() == source ? whole.clone().requires_grad_() : at::Tensor();
            const auto x = distribute_rows(mine, source, make_spec(mesh, axes));
            EXPECT_TRUE(at::equal(full_tensor(x), whole));
            (full_tensor(x) * whole).sum().backward();
            if (mine.defined()) {
                EXPECT_TRUE(at::equal(mine.grad(), whole));
            }
        });
    }
}

TEST(ScatterRows, GivesAPartitionItsRowsByGlobalId)
{
    std::mt19937_64 random(3);
    for (int trial = 0; trial < 60; ++trial) {
        const auto ranks = std::vector<int>{1, 2, 3, 5, 8}[trial % 5];
        std::vector<std::int32_t> owners(random() % 12);
        for (auto& owner : owners) owner = static_cast<std::int32_t>(random() % ranks);
        const auto source = static_cast<int>(random() % ranks);
        const auto n = static_cast<std::int64_t>(owners.size());
        run_ranks(ranks, [&](const auto& mesh) {
            const auto map = owned(owners, mesh->coordinate(0));
            const auto whole = counted_values({n, 3});
            auto mine = mesh->coordinate(0) == source ? whole.clone().requires_grad_() : at::Tensor();
            const auto spec = shard_spec(map, mesh);

            const auto x = distribute_rows(mine, source, spec);

            EXPECT_TRUE(at::equal(local_of(x), whole.index_select(0, at::tensor(map->global_ids, at::kLong))));
            EXPECT_TRUE(at::equal(full_tensor_in_global_order(x), whole));
            (full_tensor_in_global_order(x) * whole).sum().backward();
            if (mine.defined()) {
                EXPECT_TRUE(at::equal(mine.grad(), whole));
            }

            const auto provider = [&](std::span<const std::int64_t> ids) {
                EXPECT_LE(ids.size(), 2u);
                return whole.index_select(0, at::tensor(at::ArrayRef<std::int64_t>(ids.data(), ids.size()), at::kLong));
            };
            const auto y = distribute_rows(mine.defined() ? RowProvider(provider) : RowProvider(), source, spec, 2);
            EXPECT_TRUE(at::equal(full_tensor_in_global_order(y), whole));
        });
    }
}

TEST(ScatterRows, TakesRowsThatLieNowhere)
{
    run_ranks({2, 3}, {"data", "domain"}, [](const auto& mesh) {
        const auto extents = std::make_shared<Extents>(Extents{5, 0, 9});
        const auto spec = make_spec(mesh, {AxisLayout{}, AxisLayout{Shard(0), extents, 1}});
        std::size_t most = 0;
        const auto provider = [&](std::span<const std::int64_t> ids) {
            most = std::max(most, ids.size());
            auto rows = at::empty({static_cast<std::int64_t>(ids.size()), 2}, at::kLong);
            for (std::size_t i = 0; i < ids.size(); ++i) rows[static_cast<std::int64_t>(i)].fill_(ids[i] * ids[i]);
            return rows;
        };
        mesh->counter().reset();

        const auto x = distribute_rows(mesh->all().rank() == 4 ? RowProvider(provider) : RowProvider(), 4, spec, 4);

        EXPECT_LE(most, 4u);
        // A rank receives its own rows and nothing else.
        std::int64_t received = 0;
        for (const auto& call : mesh->counter().calls()) received += call.operation == "all_to_all" ? call.bytes : 0;
        const auto own = (*extents)[mesh->coordinate(1)] * 2 * 8;
        EXPECT_EQ(received, mesh->all().rank() == 4 ? 0 : own);
        const auto expected = at::arange(14).square().unsqueeze(1).expand({14, 2});
        EXPECT_TRUE(at::equal(full_tensor(x), expected));
    });
}

TEST(ScatterRows, SendsEveryRankItsPartOnly)
{
    run_ranks(3, [](const auto& mesh) {
        const auto extents = std::make_shared<Extents>(Extents{100, 20, 3});
        const auto spec = make_spec(mesh, {AxisLayout{Shard(0), extents, 1}});
        mesh->counter().reset();
        distribute_rows(mesh->coordinate(0) == 1 ? counted_values({123, 4}) : at::Tensor(), 1, spec);
        std::int64_t received = 0;
        for (const auto& call : mesh->counter().calls()) received += call.operation == "all_to_all" ? call.bytes : 0;
        EXPECT_EQ(received, mesh->coordinate(0) == 1 ? 0 : (*extents)[mesh->coordinate(0)] * 4 * 8);
    });
}

TEST(ScatterRows, RefusesOnEveryRank)
{
    run_ranks(3, [](const auto& mesh) {
        const auto spec = make_spec(mesh, {AxisLayout{Shard(0), std::make_shared<Extents>(Extents{1, 1, 2}), 1}});
        const auto on_source = [&](const at::Tensor& tensor) {
            return mesh->coordinate(0) == 0 ? tensor : at::Tensor();
        };
        EXPECT_THROW(distribute_rows(at::Tensor(), 0, spec), InvalidInput);
        EXPECT_THROW(distribute_rows(on_source(at::zeros({5})), 0, spec), InvalidInput);
        EXPECT_THROW(distribute_rows(on_source(at::zeros({})), 0, spec), InvalidInput);
        EXPECT_THROW(distribute_rows(on_source(at::zeros({4})), 3, spec), InvalidInput);
        EXPECT_THROW(
            distribute_rows(on_source(at::zeros({4})), 0, make_spec(mesh, {AxisLayout{Partial(), nullptr, 1}})),
            InvalidInput);
        EXPECT_THROW(distribute_rows(RowProvider(), 0, spec), InvalidInput);
        EXPECT_THROW(distribute_rows(RowProvider(), 0, replicated_spec(mesh)), InvalidInput);
        EXPECT_TRUE(at::equal(full_tensor(distribute_rows(on_source(at::ones({4})), 0, spec)),
                              at::ones({4})));  // all ranks are still in step
    });
}

}  // namespace
}  // namespace meshard
