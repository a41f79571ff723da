// SPDX-License-Identifier: Apache-2.0
#include "ops/row_gather.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "partition/error.h"
#include "sharding/shard_tensor.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/owner_maps.h"
#include "tests/support/run_ranks.h"

namespace meshard {
namespace {

constexpr int kRankCounts[] = {1, 2, 3, 5, 8};

at::Tensor ids_of(const IndexMap& map) { return at::tensor(map.global_ids, at::kLong); }

TEST(RowGather, GathersAndScattersByGlobalId)
{
    std::mt19937_64 random(9);
    for (int trial = 0; trial < 50; ++trial) {
        const int ranks = kRankCounts[trial % 5];
        const auto n = static_cast<std::int64_t>(1 + random() % 20);
        std::vector<int> owners(n);
        for (auto& owner : owners) owner = static_cast<int>(random() % ranks);
        std::vector<at::Tensor> ids, values;
        for (int r = 0; r < ranks; ++r) {
            std::vector<std::int64_t> own;
            for (int i = static_cast<int>(random() % 9); i > 0; --i) own.push_back(static_cast<std::int64_t>(random() % n));
            ids.push_back(at::tensor(own, at::kLong));
            values.push_back(at::randint(0, 3, {static_cast<std::int64_t>(own.size()), 2}, at::kDouble));   // ties
        }
        const auto whole = at::randint(0, 3, {n, 2}, at::kDouble), factors = at::rand({n, 2}, at::kDouble);
        // Serially.
        auto x0 = whole.clone().requires_grad_(), v0 = at::cat(values).requires_grad_();
        const auto all_ids = at::cat(ids);
        const auto gathered = gather_rows(x0, all_ids), added = scatter_add(x0, all_ids, v0), largest = scatter_max(x0, all_ids, v0);
        (gathered.sum() + (added * factors).sum() + (largest * factors).sum()).backward();
        EXPECT_TRUE(at::equal(gathered, whole.index_select(0, all_ids)));
        EXPECT_TRUE(tensors_near(added.detach(), whole.index_add(0, all_ids, v0.detach()), 1e-15));
        auto expected_largest = whole.clone().requires_grad_(), v1 = v0.detach().clone().requires_grad_();
        const auto reduced = expected_largest.index_reduce(0, all_ids, v1, "amax");
        EXPECT_TRUE(at::equal(largest.detach(), reduced.detach()));

        SCOPED_TRACE("trial " + std::to_string(trial));
        run_ranks(ranks, [&](const auto& mesh) {
            const auto rank = static_cast<int>(mesh->coordinate(0));
            const auto map = owned(owners, rank);
            const auto own = ids_of(*map);
            auto x = from_local(whole.index_select(0, own), shard_spec(map, mesh)).requires_grad_();
            auto v = values[rank].clone().requires_grad_();

            const auto found = gather_rows(x, ids[rank]), sum = scatter_add(x, ids[rank], v), most = scatter_max(x, ids[rank], v);
            (found.sum() + (to_local(sum) * factors.index_select(0, own)).sum() + (to_local(most) * factors.index_select(0, own)).sum()).backward();

            EXPECT_TRUE(at::equal(found.detach(), whole.index_select(0, ids[rank])));
            EXPECT_TRUE(tensors_near(local_of(sum), added.detach().index_select(0, own), 1e-15));
            EXPECT_TRUE(at::equal(local_of(most), largest.detach().index_select(0, own)));
            EXPECT_TRUE(tensors_near(local_of(x.grad()), x0.grad().index_select(0, own), 1e-14));
            std::int64_t before = 0;
            for (int r = 0; r < rank; ++r) before += ids[r].numel();
            EXPECT_TRUE(tensors_near(v.grad(), v0.grad().narrow(0, before, ids[rank].numel()), 1e-14));
        });
    }
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

TEST(RowGather, RefusesIdsOutOfRangeOnEveryRank)
{
    run_ranks(3, [](const auto& mesh) {
        const auto rank = mesh->coordinate(0);
        const auto x = from_local(at::ones({2, 4}), mesh, {Shard(0)});
        for (const std::int64_t bad : {-1, 6}) {
            const auto ids = at::full({1}, rank == 1 ? bad : 0, at::kLong);
            EXPECT_THROW(gather_rows(x, ids), InvalidInput);
            EXPECT_THROW(scatter_add(x, ids, at::ones({1, 4})), InvalidInput);
            EXPECT_THROW(scatter_max(x, ids, at::ones({1, 4})), InvalidInput);
        }
        EXPECT_THROW(gather_rows(x, at::zeros({1})), InvalidInput);
        EXPECT_THROW(scatter_add(x, at::zeros({1}, at::kLong), at::ones({rank == 0 ? 2 : 1, 4})), InvalidInput);
    });
    EXPECT_THROW(gather_rows(at::ones({3, 1}), at::full({1}, 3, at::kLong)), InvalidInput);
}

}  // namespace
}  // namespace meshard
