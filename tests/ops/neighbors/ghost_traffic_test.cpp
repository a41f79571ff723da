// SPDX-License-Identifier: Apache-2.0
// What crosses cuts, counted, on 60 000 points and 8 ranks; `meshard bench ghosts` counts the same of a million.
#include "ops/neighbors/neighbors.h"
#include "ops/rows/row_gather.h"
#include "tests/support/point_partitions.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

namespace meshard {
namespace {

constexpr std::int64_t kPoints = 60'000;
constexpr int kRanks = 8;

TEST(GhostTraffic, OfASearchIsWhatIsWithinReach)
{
    at::manual_seed(1);
    const auto points = at::rand({kPoints, 3});
    const double radius = std::cbrt(17 / (4.18879 * kPoints));
    const auto all = radius_search(points, points, radius);
    for (const auto& [name, owners] : point_partitions(points, kRanks)) {
        if (name != "metis" && name != "curve") continue;
        SCOPED_TRACE(name);
        const auto owner_of = at::tensor(owners, at::kInt);
        run_ranks(kRanks, [&, &owners = owners](const auto& mesh) {
            const CutPoints rows(owners, mesh);
            const auto rank = mesh->coordinate(0);
            const auto query_of = at::arange(kPoints, at::kLong).repeat_interleave(all.offsets.diff());
            const auto of_own = all.ids.masked_select(owner_of.index_select(0, query_of).eq(rank));
            const auto within_reach = at::zeros({kPoints}, at::kBool)
                                          .index_fill_(0, of_own, true)
                                          .logical_and_(owner_of.ne(rank))
                                          .sum()
                                          .template item<std::int64_t>();
            const auto cut = rows.cut(points), features = from_local(at::ones({rows.ids.size(0), 16}), rows.spec);
            auto& counter = mesh->counter();
            counter.reset();

            const auto found = radius_search(cut, cut, radius);

            EXPECT_TRUE(at::equal(found.ids, of_own));
            EXPECT_GE(found.plan->num_ghosts(), within_reach);
            EXPECT_LE(static_cast<double>(found.plan->num_ghosts()), 1.2 * static_cast<double>(within_reach));
            EXPECT_LE(counter.total_bytes(), 22 * within_reach + 12'000);  // 12 a point; ids, questions; boxes
            const auto ring_bytes = 12 * (kPoints - rows.ids.size(0));
            EXPECT_GE(ring_bytes, 10 * counter.total_bytes());

            counter.reset();
            const auto again = radius_search(cut, cut, radius);
            EXPECT_LT(counter.total_bytes(), 500);  // that ranks ask for the same as before
            EXPECT_EQ(again.plan, found.plan);
            counter.reset();
            gather_neighbors(features, again);
            gather_neighbors(features, again);
            EXPECT_EQ(counter.num_calls(), 2);
            EXPECT_EQ(counter.total_bytes(), 2 * found.plan->num_ghosts() * 16 * 4);

            counter.reset();
            const auto gathered = gather_rows(features, from_local(found.ids, mesh, {Shard(0)}));
            EXPECT_EQ(counter.calls().back().bytes,
                      within_reach * 16 * 4);  // each remote row once, however often it is wanted
            EXPECT_EQ(local_of(gathered).size(0), found.ids.size(0));
        });
    }
}

}  // namespace
}  // namespace meshard
