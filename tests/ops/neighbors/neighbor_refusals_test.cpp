// SPDX-License-Identifier: Apache-2.0
// What one rank passes wrongly, all ranks refuse with a message that says it, before any row travels; and then they can
// go on together.
#include "ops/neighbors/ball_query.h"
#include "ops/neighbors/cloud_interpolation.h"
#include "ops/neighbors/message_graph.h"
#include "ops/neighbors/neighbors.h"
#include "ops/neighbors/point_sampling.h"
#include "ops/rows/ghost_exchange.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/point_partitions.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <tuple>

namespace meshard {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

at::Tensor scattered_values(std::vector<std::int64_t> shape)
{
    return at::arange(c10::multiply_integers(shape), at::kDouble)
        .mul(12.9898)
        .sin()
        .mul(43758.5453)
        .frac()
        .abs()
        .view(shape);
}

/// Ranks of which one does something wrong.
class OneIsWrong {
public:
    OneIsWrong(std::shared_ptr<const DeviceMesh> mesh, int wrong)
        : mesh_(std::move(mesh)), is_here_(mesh_->all().rank() == wrong)
    {
    }

    bool is_here() const { return is_here_; }
    const std::shared_ptr<const DeviceMesh>& mesh() const { return mesh_; }

    template <class T>
    T pick(T wrong, T right) const
    {
        return is_here_ ? wrong : right;
    }

    at::Tensor cut(const at::Tensor& local, std::int64_t dim = 0) const
    {
        return from_local(local, mesh_, {Shard(dim)});
    }

    /// A tensor of other ranks' rows, as a careless program might make it: nobody compares the shapes.
    at::Tensor claimed(const at::Tensor& local, const at::Tensor& like) const
    {
        return from_local(local, spec_of(like));
    }

    at::Tensor spoiled(const at::Tensor& local, double value) const
    {
        auto copy = local.clone();
        if (is_here_) copy.view({-1})[1] = value;
        return copy;
    }

    /// That the call throws here, as on every rank, when ranks have said hardly more than that.
    void refuse(const std::string& text, const std::function<void()>& call) const
    {
        mesh_->counter().reset();
        EXPECT_TRUE(throws_with<InvalidInput>(text, call))
            << "on rank " << mesh_->all().rank() << " of " << mesh_->all().size();
        EXPECT_LE(mesh_->counter().total_bytes(), 600 + 40 * mesh_->all().size()) << text;
        EXPECT_TRUE(mesh_->all().all_agree(true));  // nobody is left behind in another message
    }

private:
    std::shared_ptr<const DeviceMesh> mesh_;
    bool is_here_;
};

void with_one_wrong(const std::function<void(const OneIsWrong&)>& body)
{
    for (const int ranks : {2, 3, 8}) {
        for (const int wrong : {0, ranks - 1})
            run_ranks(ranks, [&](const auto& mesh) { body(OneIsWrong(mesh, wrong)); });
    }
}

TEST(NeighborRefusals, OfSearches)
{
    with_one_wrong([](const OneIsWrong& one) {
        const auto local = scattered_values({4, 3});
        const auto points = one.cut(local);
        for (const double bad : {kNan, kInf, -kInf}) {
            one.refuse("must be finite", [&] { knn(one.cut(one.spoiled(local, bad)), points, 2); });
            one.refuse("must be finite", [&] { radius_search(points, one.cut(one.spoiled(local, bad)), 0.5); });
            one.refuse("must be finite", [&] { knn(one.spoiled(local, bad), points, 2); });
        }
        for (const double bad : {kNan, kInf, -1.0, 0.0})
            one.refuse("radius", [&] { radius_search(points, points, one.pick(bad, 0.5)); });
        for (const std::int64_t bad : {0, -1}) {
            one.refuse("k is " + std::to_string(bad), [&] { knn(points, points, one.pick<std::int64_t>(bad, 2)); });
            one.refuse("neighbors", [&] { radius_search(points, points, 0.5, one.pick<std::int64_t>(bad - 1, 2)); });
        }
        one.refuse("no radii",
                   [&] { radius_search(points, points, one.pick(std::vector<RadiusLimit>{}, {{0.5, 2}})); });
        one.refuse("a period is negative", [&] { knn(points, points, 1, {.period = {1, one.pick(-1.0, 1.0), 1}}); });
        one.refuse("2 periods for 3 dimensions",
                   [&] { knn(points, points, 1, {.period = one.pick<std::vector<double>>({1, 1}, {1, 1, 1})}); });
        one.refuse("NeighborOrder::Grid is for",
                   [&] { knn(points, points, 1, {.order = one.pick(NeighborOrder::Grid, NeighborOrder::Nearest)}); });

        const std::string differ = "ranks pass different arguments";
        one.refuse(differ, [&] { radius_search(points, points, one.pick(0.4, 0.5)); });
        one.refuse(differ, [&] { radius_search(points, points, 0.5, one.pick<std::int64_t>(3, kAllNeighbors)); });
        one.refuse(differ, [&] {
            radius_search(points, points, one.pick(std::vector<RadiusLimit>{{0.5, 2}, {0.6, 2}}, {{0.5, 2}}));
        });
        one.refuse(differ, [&] { knn(points, points, one.pick<std::int64_t>(3, 2)); });
        one.refuse(differ, [&] { knn(points, points, 2, {.exclude_self = one.is_here()}); });
        one.refuse(differ, [&] { knn(points, points, 2, {.period = {1, one.pick(2.0, 1.0), 0}}); });
        one.refuse(differ, [&] {
            radius_search(points, points, 0.5, kAllNeighbors,
                          {.order = one.pick(NeighborOrder::Grid, NeighborOrder::Nearest)});
        });
        one.refuse(differ, [&] { one.is_here() ? knn(points, points, 2) : radius_search(points, points, 0.5); });
        one.refuse(differ, [&] { knn(one.is_here() ? local : points, points, 2); });
        one.refuse(differ, [&] { knn(points, one.is_here() ? local : points, 2); });
        one.refuse(differ, [&] { knn(one.is_here() ? points.detach().requires_grad_() : points, points, 2); });
        const auto two = local.narrow(1, 0, 2);
        one.refuse(differ, [&] {
            const auto all = one.claimed(one.pick(two, local), points);
            knn(all, all, 2);
        });
        one.refuse("Give both the same", [&] { knn(points, one.claimed(one.pick(two, local), points), 2); });
        for (const auto& [wrong, right, text] : {std::tuple(at::kFloat, at::kDouble, differ),
                                                 {at::kHalf, at::kFloat, differ},
                                                 {at::kLong, at::kFloat, "of a floating type"}}) {
            const auto all = one.claimed(local.to(one.pick(wrong, right)), points);
            one.refuse(text, [&] { knn(all, all, 2); });
        }
        one.refuse("Give both the same",
                   [&] { knn(points, one.claimed(local.to(one.pick(at::kFloat, at::kDouble)), points), 2); });
        one.refuse("too many radii", [&] {
            const auto far = one.cut(one.spoiled(local, 1e9));
            radius_search(far, far, 0.5, 3, {.order = NeighborOrder::Grid});
        });
        one.refuse("of 1 dimensions",
                   [&] { knn(one.claimed(one.pick(local.select(1, 0), local), points), points, 2); });
        one.refuse("of 1 dimensions", [&] {
            const auto all = one.claimed(one.pick(local.select(1, 0), local), points);
            knn(all, all, 2);
        });
        EXPECT_EQ(knn(points, points, 2).ids.numel(), 8);
    });
}

TEST(NeighborRefusals, OfBatches)
{
    with_one_wrong([](const OneIsWrong& one) {
        const auto local = scattered_values({2, 4, 3});
        const auto clouds = one.cut(local, 1);
        const auto three = scattered_values({3, 4, 3});
        one.refuse("ranks pass different arguments", [&] {
            const auto all = one.claimed(one.pick(three, local), clouds);
            knn(all, all, 2);
        });
        one.refuse("of the same clouds", [&] { knn(clouds, one.claimed(one.pick(three, local), clouds), 2); });
        one.refuse("of the same clouds",
                   [&] { knn(one.claimed(one.pick(local.narrow(0, 0, 0), local), clouds), clouds, 2); });
        const auto single = one.cut(local[0]);
        one.refuse("ranks pass different arguments",
                   [&] { knn(one.is_here() ? clouds : single, one.is_here() ? clouds : single, 2); });
        one.refuse("of the same clouds", [&] { knn(clouds, one.is_here() ? single : clouds, 2); });
        one.refuse("must be finite", [&] { knn(clouds, one.cut(one.spoiled(local, kNan), 1), 2); });

        one.refuse("no max_neighbors", [&] {
            ball_query(clouds, clouds, {{0.5, one.pick<std::int64_t>(kAllNeighbors, 3)}}, NeighborOrder::Nearest);
        });
        one.refuse("clouds of points", [&] {
            ball_query(clouds, one.claimed(one.pick(three, local), clouds), {{0.5, 3}}, NeighborOrder::Nearest);
        });
        one.refuse("expected (batch, points, dimensions)",
                   [&] { ball_query(one.is_here() ? single : clouds, clouds, {{0.5, 3}}, NeighborOrder::Nearest); });
        one.refuse("different arguments",
                   [&] { ball_query(clouds, clouds, {{0.5, one.pick<std::int64_t>(4, 3)}}, NeighborOrder::Nearest); });
        EXPECT_EQ(knn(clouds, clouds, 2).ids.numel(), 16);
    });
}

TEST(NeighborRefusals, OfBatchesThatAreCutBothWays)
{
    const auto clouds = scattered_values({4, 6, 3});
    for (int wrong = 0; wrong < 6; ++wrong) {
        run_ranks({2, 3}, {"data", "domain"}, [&](const auto& mesh) {
            const OneIsWrong one(mesh, wrong);
            const auto local = clouds.narrow(0, 2 * mesh->coordinate(0), 2).narrow(1, 2 * mesh->coordinate(1), 2);
            const auto lay = [&](const at::Tensor& own) { return from_local(own, mesh, {Shard(0), Shard(1)}); };
            const auto cut = lay(local);
            one.refuse("must be finite", [&] { knn(lay(one.spoiled(local, kNan)), cut, 2); });
            one.refuse("k is 0", [&] { knn(cut, cut, one.pick<std::int64_t>(0, 2)); });
            EXPECT_EQ(knn(cut, cut, 2).ids.numel(), 8);
        });
    }
}

TEST(NeighborRefusals, OfWhatFollowsASearch)
{
    with_one_wrong([](const OneIsWrong& one) {
        const auto local = scattered_values({4, 3});
        const auto points = one.cut(local);
        one.refuse("the power is 0",
                   [&] { CloudInterpolation(points, points, {.num_neighbors = 2, .power = one.pick(0.0, 2.0)}); });
        one.refuse("different arguments",
                   [&] { CloudInterpolation(points, points, {.num_neighbors = one.pick<std::int64_t>(3, 2)}); });

        const auto found = knn(points, points, 2);
        const auto other = knn(points, one.cut(local.narrow(0, 0, 2)), 2);
        one.refuse("MessageGraph", [&] { MessageGraph graph(one.is_here() ? other : found); });
        one.refuse("MessageGraph", [&] { MessageGraph graph(one.is_here() ? other : found, points); });
        one.refuse("MessageGraph", [&] { MessageGraph graph(found, one.is_here() ? local : points); });
        one.refuse("steps", [&] { DeepGraph deep(MessageGraph(found), one.pick<std::int64_t>(3, 2)); });

        // Of layouts every rank knows all ranks' rows: another one somewhere is another one everywhere.
        for (const auto& features :
             {one.cut(at::ones({one.pick<std::int64_t>(5, 4), 2})), at::ones({4 * one.mesh()->all().size(), 2})}) {
            const auto refuse = [&](const auto& call) {
                one.refuse("the points had", call);
                EXPECT_EQ(one.mesh()->counter().num_calls(), 1) << "the test's own";
            };
            refuse([&] { gather_neighbors(features, found); });
            refuse([&] {
                MessageGraph graph(found);
                one.mesh()->counter().reset();
                graph.from_sources(features);
            });
        }
    });
}

/// As many rows on every rank as the points had, but others.
TEST(NeighborRefusals, OfFeaturesWithOtherIds)
{
    const auto points = scattered_values({24, 3});
    for (const int ranks : {2, 3, 8}) {
        std::vector<int> owners(24), others(24);
        for (int i = 0; i < 24; ++i) {
            owners[i] = i % ranks;
            others[i] = (i + 1) % ranks;
        }
        run_ranks(ranks, [&](const auto& mesh) {
            const CutPoints rows(owners, mesh), other_rows(others, mesh), same_rows(owners, mesh);
            const auto found = knn(rows.cut(points), rows.cut(points), 3);
            const auto refuses = [](const auto& call) {
                return throws_with<InvalidInput>("have other global ids than the points' had", call);
            };
            EXPECT_TRUE(refuses([&] { gather_neighbors(other_rows.cut(points), found); }));
            EXPECT_TRUE(at::equal(gather_neighbors(same_rows.cut(points), found),
                                  points.index_select(0, found.ids)));  // another map of the same rows
        });
    }
}

TEST(NeighborRefusals, OfSamples)
{
    with_one_wrong([](const OneIsWrong& one) {
        const auto points = one.cut(scattered_values({4, 3}));
        one.refuse("rows are asked for", [&] { random_sample(points, one.pick<std::int64_t>(1000, 3)); });
        one.refuse("different arguments", [&] { random_sample(points, one.pick<std::int64_t>(2, 3)); });
        one.refuse("different arguments", [&] { random_sample(points, 3, one.pick<std::uint64_t>(1, 0)); });
        EXPECT_NO_THROW(random_sample(points, 3));
    });
}

/// A plan alone knows nothing of the others' tensors, and its messages are nothing but rows: who passes a wrong one
/// throws, and the others fail when it has gone.
TEST(NeighborRefusals, OfABarePlanIsThatRanksAlone)
{
    EXPECT_TRUE(throws_with<InvalidInput>(
        "a tensor of 3 rows, expected 2; the plan has 2 owned + 1 ghost rows. Is it of another layout?", [] {
            run_ranks(2, [](const auto& mesh) {
                const auto rank = mesh->coordinate(0);
                const IndexMap map{4, 2, {2 * rank, 2 * rank + 1, 2 - 2 * rank}, {static_cast<std::int32_t>(1 - rank)}};
                const auto plan = ExchangePlan::find(map, mesh->group(0));
                exchange_ghosts(at::ones({rank == 1 ? 3 : 2, 4}), plan);
            });
        }));
}

}  // namespace
}  // namespace meshard
