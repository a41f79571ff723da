// SPDX-License-Identifier: Apache-2.0
// Acceptance of what crosses cuts, on METIS, curve, random and empty-rank partitions of 1, 2, 3, 4, 5, 7 and 8 ranks.
// Rows that are not here: A15 (surface_distance_test.cpp), A16 (row_gather_test.cpp), A18
// (partition/ghost_layer_test.cpp), A23 (mesh_operators_test.cpp), A32 (late_ranks_test.cpp).
#include "ops/neighbors/neighbors.h"
#include "ops/rows/ghost_exchange.h"
#include "ops/rows/segment_reduce.h"
#include "partition/error.h"
#include "partition/ghosts/ghost_layer.h"
#include "sharding/exchange/merged_plan.h"
#include "sharding/tensor/redistribute.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/live_bytes.h"
#include "tests/support/point_partitions.h"
#include "tests/support/rank_counts.h"
#include "tests/support/run_ranks.h"
#include "tests/support/scattered_points.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace meshard {
namespace {

/// `body(mesh, rows, name)` on every rank of every partition of the points.
template <class Body>
void on_all_partitions(const at::Tensor& points, const Body& body)
{
    for (const int ranks : kRankCounts) {
        for (const auto& [name, owners] : point_partitions(points, ranks)) {
            SCOPED_TRACE(name + " partition, " + std::to_string(ranks) + " ranks");
            run_ranks(ranks, [&](const auto& mesh) { body(mesh, CutPoints(owners, mesh), owners); });
            if (testing::Test::HasFailure()) return;
        }
    }
}

/// 4 x 4 x 4 points of a lattice, of which every fourth is there twice: many ties.
at::Tensor lattice()
{
    std::vector<double> x;
    for (int i = 0; i < 80; ++i) {
        const int at = i < 64 ? i : 4 * (i - 64);
        for (const int place : {at % 4, at / 4 % 4, at / 16}) x.push_back(0.25 * place);
    }
    return at::tensor(x, at::kDouble).view({-1, 3});
}

/// Every pair looked at: for each query the ids within the radius, nearest first, ties by id, the first k.
std::vector<std::vector<std::int64_t>> all_within(const at::Tensor& points, std::int64_t k, double radius,
                                                  bool exclude_self)
{
    const auto n = points.size(0);
    const auto x = points.accessor<double, 2>();
    std::vector<std::vector<std::int64_t>> found(n);
    for (std::int64_t q = 0; q < n; ++q) {
        std::vector<std::pair<double, std::int64_t>> all;
        for (std::int64_t p = 0; p < n; ++p) {
            double sum = 0;
            for (int d = 0; d < 3; ++d) sum += (x[p][d] - x[q][d]) * (x[p][d] - x[q][d]);
            if (sum <= radius * radius && !(exclude_self && p == q)) all.emplace_back(sum, p);
        }
        std::sort(all.begin(), all.end());
        for (std::size_t i = 0; i < std::min<std::size_t>(k, all.size()); ++i) found[q].push_back(all[i].second);
    }
    return found;
}

void expect_ids(const Neighbors& found, const at::Tensor& query_ids,
                const std::vector<std::vector<std::int64_t>>& expected)
{
    const auto* offsets = found.offsets.const_data_ptr<std::int64_t>();
    const auto* ids = found.ids.const_data_ptr<std::int64_t>();
    ASSERT_EQ(found.offsets.size(0), query_ids.size(0) + 1);
    for (std::int64_t q = 0; q < query_ids.size(0); ++q) {
        ASSERT_EQ(std::vector<std::int64_t>(ids + offsets[q], ids + offsets[q + 1]),
                  expected[query_ids[q].item<std::int64_t>()]);
    }
}

TEST(AcceptanceA04, EveryIdHasOneOwnerAndMapsAreInverse)
{
    const auto points = scattered(60);
    on_all_partitions(points, [&](const auto& mesh, const CutPoints& rows, const std::vector<int>& owners) {
        auto owner_counts = at::zeros({60}, at::kLong).index_fill_(0, rows.ids, 1);
        mesh->group(0).all_reduce(owner_counts);
        EXPECT_TRUE(at::equal(owner_counts, at::ones({60}, at::kLong)));
        for (std::int32_t local = 0; local < rows.map->num_local(); ++local) {
            EXPECT_EQ(rows.map->local_row(rows.map->global_ids[local]), local);
            EXPECT_EQ(owners[rows.map->global_ids[local]], mesh->coordinate(0));
        }
    });
}

TEST(AcceptanceA12, NearestAreThoseOfTheWholeWithTiesAndDuplicates)
{
    const auto points = lattice();
    for (const auto& [k, exclude_self] : {std::pair{7, false}, {7, true}, {50, false}}) {  // 50: more than a shard has
        const auto expected = all_within(points, k, 1e9, exclude_self);
        on_all_partitions(
            points, [&, k = k, exclude_self = exclude_self](const auto&, const CutPoints& rows, const auto&) {
                const auto cut = rows.cut(points);
                const auto found = knn(cut, cut, k, {.exclude_self = exclude_self});
                expect_ids(found, rows.ids, expected);
                const auto query_rows = at::arange(rows.ids.size(0), at::kLong).repeat_interleave(found.offsets.diff());
                const auto gaps = points.index_select(0, found.ids) - rows.of(points).index_select(0, query_rows);
                EXPECT_TRUE(tensors_near(found.distances, gaps.square().sum(1).sqrt(), 1e-12));
            });
    }
}

TEST(AcceptanceA12, BatchesOfCutCloudsAreSearchedCloudByCloud)
{
    const auto clouds = at::stack({scattered(40), scattered(40).mul(1.7).frac(), scattered(40).square()});
    const auto features = at::arange(3 * 40 * 2, at::kDouble).mul(0.37).sin().view({3, 40, 2});
    for (const int ranks : kRankCounts) {
        std::vector<int> owners(40);
        for (int i = 0; i < 40; ++i) owners[i] = i * i % 11 % ranks;
        run_ranks(ranks, [&](const auto& mesh) {
            const CutPoints rows(owners, mesh);
            auto spec = std::make_shared<ShardSpec>(*rows.spec);
            spec->axes[0].placement = Shard(1);
            const auto lay = [&](const at::Tensor& whole) {
                return from_local(whole.index_select(1, rows.ids), SpecPtr(spec));
            };
            auto p = lay(clouds).requires_grad_(), f = lay(features).requires_grad_();

            const auto found = radius_search(p, p, 0.4);
            const auto sent = gather_neighbors(f, found);
            (sent.square().sum() + found.distances.sum()).backward();

            std::vector<at::Tensor> ids, expected;
            auto p0 = clouds.clone().requires_grad_(), f0 = features.clone().requires_grad_();
            at::Tensor loss;
            for (std::int64_t b = 0; b < 3; ++b) {
                const auto one = radius_search(p0[b], p0[b].index_select(0, rows.ids), 0.4);
                ids.push_back(one.ids);
                expected.push_back(gather_neighbors(f0[b], one));
                const auto all = radius_search(p0[b], p0[b], 0.4);
                const auto part = gather_neighbors(f0[b], all).square().sum() + all.distances.sum();
                loss = loss.defined() ? loss + part : part;
            }
            loss.backward();
            EXPECT_TRUE(at::equal(found.ids, at::cat(ids)));
            EXPECT_TRUE(at::equal(sent.detach(), at::cat(expected).detach()));
            EXPECT_TRUE(tensors_near(local_of(f.grad()), f0.grad().index_select(1, rows.ids), 1e-12));
            EXPECT_TRUE(tensors_near(local_of(p.grad()), p0.grad().index_select(1, rows.ids), 1e-10));
        });
    }
}

TEST(AcceptanceA12, OfABatchThatIsCutEachRankSearchesItsOwnClouds)
{
    const auto clouds = at::stack({scattered(30), scattered(30).mul(1.7).frac(), scattered(30).square()});
    const auto features = at::arange(3 * 30 * 2, at::kDouble).mul(0.37).sin().view({3, 30, 2});
    auto p0 = clouds.clone().requires_grad_(), f0 = features.clone().requires_grad_();
    const auto loss_of = [](const at::Tensor& points, const at::Tensor& values) {
        const auto found = knn(points, points, 5);
        return (gather_neighbors(values, found).square() * found.distances.unsqueeze(1)).sum();
    };
    loss_of(p0, f0).backward();
    for (const std::vector<std::int64_t>& shape :
         {std::vector<std::int64_t>{3, 1}, {1, 3}, {2, 2}, {4, 2}}) {  // of four, one has no clouds
        run_ranks(shape, {"data", "domain"}, [&](const auto& mesh) {
            const auto extents = [&](std::int64_t n, std::int64_t axis) {
                return std::make_shared<Extents>(even_extents(n, shape[axis]));
            };
            const auto spec = make_spec(mesh, {{Shard(0), extents(3, 0), 1}, {Shard(1), extents(30, 1), 1}});
            const auto own = [&](const at::Tensor& whole) {
                return narrow_to_shard(narrow_to_shard(whole, spec->axes[0], mesh->coordinate(0)), spec->axes[1],
                                       mesh->coordinate(1));
            };
            auto p = from_local(own(clouds), spec).requires_grad_(),
                 f = from_local(own(features), spec).requires_grad_();

            loss_of(p, f).backward();

            EXPECT_TRUE(tensors_near(local_of(p.grad()), own(p0.grad()), 1e-12));
            EXPECT_TRUE(tensors_near(local_of(f.grad()), own(f0.grad()), 1e-12));
            auto q = p.detach().requires_grad_();
            knn(p.detach(), q, 5).distances.sum().backward();
            ASSERT_TRUE(q.grad().defined());
            EXPECT_TRUE(is_sharded(q.grad()));
            auto spoiled = own(clouds).clone();
            if (mesh->coordinate(0) == 0) spoiled.view({-1})[0] = std::nan("");
            EXPECT_THROW(knn(from_local(spoiled, spec), p.detach(), 5), InvalidInput);
        });
    }
}

TEST(AcceptanceA13, RadiusCountsAreExactAndFullListsKeepTheNearest)
{
    const auto points = lattice();
    const auto all = all_within(points, 1000, 0.5, false), nearest = all_within(points, 6, 0.5, false);
    on_all_partitions(points, [&](const auto&, const CutPoints& rows, const auto&) {
        const auto cut = rows.cut(points);
        expect_ids(radius_search(cut, cut, 0.5), rows.ids, all);
        expect_ids(radius_search(cut, cut, 0.5, 6), rows.ids, nearest);
    });
}

std::vector<std::vector<std::int64_t>> lists_of(const Neighbors& found)
{
    std::vector<std::vector<std::int64_t>> lists;
    for (std::int64_t i = 0; i + 1 < found.offsets.size(0); ++i) {
        const auto ids =
            found.ids.slice(0, found.offsets[i].item<std::int64_t>(), found.offsets[i + 1].item<std::int64_t>());
        lists.emplace_back(ids.const_data_ptr<std::int64_t>(), ids.const_data_ptr<std::int64_t>() + ids.numel());
    }
    return lists;
}

TEST(AcceptanceA13, PeriodsInSinglePrecisionLoseNoNeighbourAtTheCut)
{
    // As far apart as the radius, so that rounding decides who is a neighbour.
    for (const std::int64_t n : {100, 211, 333})
        for (const double gap : {0.01, 0.1})
            for (const double begin : {0.0, -0.5, -1.0}) {
                const auto points = (at::arange(n, at::kDouble) * gap + begin * n * gap).to(at::kFloat).view({n, 1});
                const NeighborOptions options{.period = {static_cast<double>(n) * gap}};
                const auto expected = lists_of(radius_search(points, points, gap, kAllNeighbors, options));
                for (const auto first : {n / 6, 3 * n / 4})
                    run_ranks(2, [&](const auto& mesh) {
                        const AxisLayout layout{Shard(0), std::make_shared<Extents>(Extents{first, n - first}), 1};
                        const auto cut = from_local(narrow_to_shard(points, layout, mesh->coordinate(0)).clone(),
                                                    make_spec(mesh, {layout}));
                        const auto ids = mesh->coordinate(0) == 0 ? at::arange(first) : at::arange(first, n);
                        expect_ids(radius_search(cut, cut, gap, kAllNeighbors, options), ids.to(at::kLong), expected);
                    });
            }
}

TEST(AcceptanceA13, TheGridsOrderIsThatOfTheWhole)
{
    // Far from 0 and as far apart as the radius, so that single precision decides who is a neighbour.
    const auto steps = at::arange(7, at::kDouble) * 0.1 + 50;
    const auto far = at::cartesian_prod({steps, steps, steps});
    for (const auto& [points, radius, most] : {std::tuple(lattice(), 0.3, 4), {lattice(), 0.55, 9}, {far, 0.1, 8}}) {
        const auto expected = lists_of(radius_search(points, points, radius, most, {.order = NeighborOrder::Grid}));
        on_all_partitions(points, [&, points = points, radius = radius, most = most](const auto&, const CutPoints& rows,
                                                                                     const auto&) {
            const auto cut = rows.cut(points);
            expect_ids(radius_search(cut, cut, radius, most, {.order = NeighborOrder::Grid}), rows.ids, expected);
        });
    }
}

TEST(AcceptanceA14, GradientsThroughGhostsAreTheSerialOnesAndFiniteDifferences)
{
    const auto points = scattered(50), features = at::arange(100, at::kDouble).mul(0.9).cos().view({50, 2});
    const auto loss_of = [](const at::Tensor& p, const at::Tensor& f) {
        const auto found = knn(p, p, 6, {.exclude_self = true});
        return (found.distances.square().unsqueeze(1) * gather_neighbors(f, found).sin()).sum();
    };
    auto p0 = points.clone().requires_grad_(), f0 = features.clone().requires_grad_();
    loss_of(p0, f0).backward();
    for (const int i : {0, 31, 77, 149}) {
        const double step = 1e-6;
        const auto moved = [&](double by) {
            auto other = points.clone();
            other.view({-1})[i] += by;
            return loss_of(other, features).item<double>();
        };
        EXPECT_NEAR(p0.grad().view({-1})[i].item<double>(), (moved(step) - moved(-step)) / (2 * step), 1e-8);
    }
    on_all_partitions(points, [&](const auto&, const CutPoints& rows, const auto&) {
        auto p = rows.cut(points).requires_grad_(), f = rows.cut(features).requires_grad_();
        loss_of(p, f).backward();
        EXPECT_TRUE(tensors_near(local_of(p.grad()), rows.of(p0.grad()), 1e-12));
        EXPECT_TRUE(tensors_near(local_of(f.grad()), rows.of(f0.grad()), 1e-12));
    });
}

TEST(AcceptanceA17, GhostsAddUpToCopiesAndTheTwoDirectionsAreAdjoint)
{
    const auto points = scattered(70), x0 = at::arange(210, at::kDouble).mul(0.7).sin().view({70, 3});
    on_all_partitions(points, [&](const auto& mesh, const CutPoints& rows, const auto&) {
        const auto cut = rows.cut(points);
        const auto plan = knn(cut, cut, 6).plan;
        ASSERT_EQ(plan == nullptr, mesh->num_ranks() == 1);
        if (!plan) return;  // nobody to exchange with
        auto copies = at::ones({70}, at::kDouble)
                          .div(mesh->num_ranks())
                          .index_add_(0, exchange_ghosts(rows.ids, plan), at::ones({plan->num_ghosts()}, at::kDouble));
        mesh->group(0).all_reduce(copies);
        const auto x = rows.of(x0),
                   y = at::arange(plan->num_local() * 3, at::kDouble).add(mesh->coordinate(0)).cos().view({-1, 3});

        const auto forward = with_ghosts(x, plan), reverse = scatter_ghosts(y, plan);

        EXPECT_TRUE(
            tensors_near(scatter_ghosts(at::ones({plan->num_local()}, at::kDouble), plan), rows.of(copies), 1e-14));
        auto products = at::stack({(forward * y).sum(), (x * reverse).sum()});
        mesh->group(0).all_reduce(products);
        EXPECT_NEAR(products[0].template item<double>(), products[1].template item<double>(),
                    1e-12 * std::max(1.0, std::abs(products[0].template item<double>())));
    });
}

TEST(AcceptanceA24, EightLayersOfMessagesGiveTheSerialLossAndGradients)
{
    const auto points = scattered(60);
    const auto features = at::arange(60 * 4, at::kDouble).mul(0.37).sin().view({60, 4});
    const auto initial = at::arange(16, at::kDouble).mul(0.9).cos().mul(0.3).view({4, 4});
    const auto layers = [](const Neighbors& graph, at::Tensor own, const at::Tensor& weight, const auto& wrap) {
        for (int layer = 0; layer < 8; ++layer) {
            const auto sent = gather_neighbors(wrap(own), graph);
            const auto mixed = segment_reduce(sent * segment_softmax(sent.sum(1, true), graph.offsets), graph.offsets,
                                              SegmentReduction::Sum)
                                   .values;
            own = own + (mixed.mm(weight) + segment_reduce(sent, graph.offsets, SegmentReduction::Max).values).tanh();
        }
        return own;
    };
    auto f0 = features.clone().requires_grad_(), w0 = initial.clone().requires_grad_();
    const auto serial = layers(knn(points, points, 6), f0, w0, [](const at::Tensor& x) { return x; });
    serial.square().sum().backward();
    on_all_partitions(points, [&](const auto& mesh, const CutPoints& rows, const auto&) {
        const auto cut = rows.cut(points);
        auto f = rows.of(features).requires_grad_(), w = initial.clone().requires_grad_();
        const auto found =
            layers(knn(cut, cut, 6), f, w, [&](const at::Tensor& x) { return from_local(x, rows.spec); });
        found.square().sum().backward();
        auto weight_gradient = w.grad().defined() ? w.grad().clone() : at::zeros_like(w);
        mesh->group(0).all_reduce(weight_gradient);
        EXPECT_TRUE(tensors_near(found.detach(), rows.of(serial.detach()), 1e-11));
        EXPECT_TRUE(tensors_near(f.grad(), rows.of(f0.grad()), 1e-9));
        EXPECT_TRUE(tensors_near(weight_gradient, w0.grad(), 1e-9));
    });
}

TEST(AcceptanceA24, NaNOfAnyNeighbourReachesItsQueries)
{
    const auto points = scattered(60);
    auto features = at::arange(120, at::kDouble).mul(0.9).cos().view({60, 2});
    for (const int spoiled : {7, 31, 58}) features[spoiled][spoiled % 2] = std::nan("");
    const auto graph = knn(points, points, 5);
    on_all_partitions(points, [&](const auto&, const CutPoints& rows, const auto&) {
        const auto cut = rows.cut(points), f = rows.cut(features);
        const auto found = knn(cut, cut, 5);
        for (const auto reduction :
             {SegmentReduction::Sum, SegmentReduction::Mean, SegmentReduction::Max, SegmentReduction::Min}) {
            const auto expected =
                rows.of(segment_reduce(gather_neighbors(features, graph), graph.offsets, reduction).values);
            EXPECT_TRUE(tensors_near(segment_reduce(gather_neighbors(f, found), found.offsets, reduction).values,
                                     expected, 1e-15));
        }
    });
    EXPECT_GE(segment_reduce(gather_neighbors(features, graph), graph.offsets, SegmentReduction::Max)
                  .values.isnan()
                  .sum()
                  .item<std::int64_t>(),
              3);
}

TEST(AcceptanceA26, MessagesHaveTheBytesThatThePlanSays)
{
    const auto points = scattered(80);
    on_all_partitions(points, [&](const auto& mesh, const CutPoints& rows, const auto&) {
        const auto cut = rows.cut(points);
        const auto found = knn(cut, cut, 5);
        const auto features = from_local(at::ones({rows.ids.size(0), 7}, at::kFloat), rows.spec);
        mesh->counter().reset();

        const auto sent = gather_neighbors(features, found);

        EXPECT_EQ(mesh->counter().total_bytes(), found.plan ? found.plan->num_ghosts() * 7 * 4 : 0);
        mesh->counter().reset();
        segment_reduce(sent, found.offsets, SegmentReduction::Max);
        segment_softmax(sent, found.offsets);
        EXPECT_EQ(mesh->counter().num_calls(), 0);
    });
}

TEST(AcceptanceA26, ASecondSearchStepSendsFeaturesAndNothingElse)
{
    const auto points = scattered(4000);
    const double radius = std::cbrt(17 / (4.18879 * 4000));
    const auto all = radius_search(points, points, radius);
    const auto* offsets = all.offsets.const_data_ptr<std::int64_t>();
    const auto* ids = all.ids.const_data_ptr<std::int64_t>();
    for (const auto& [name, owners] : point_partitions(points, 8)) {
        if (name != "metis" && name != "curve") continue;
        SCOPED_TRACE(name);
        run_ranks(8, [&, &owners = owners](const auto& mesh) {
            const CutPoints rows(owners, mesh);
            const auto rank = static_cast<int>(mesh->coordinate(0));
            std::set<std::int64_t> within_reach;
            for (const auto i : rows.map->owned()) {
                for (auto e = offsets[i]; e < offsets[i + 1]; ++e) {
                    if (owners[ids[e]] != rank) within_reach.insert(ids[e]);
                }
            }
            const auto cut = rows.cut(points);

            const auto found = radius_search(cut, cut, radius);

            EXPECT_GE(found.plan->num_ghosts(), static_cast<std::int64_t>(within_reach.size()));
            EXPECT_LE(static_cast<double>(found.plan->num_ghosts()), 1.2 * static_cast<double>(within_reach.size()));
            for (int step = 0; step < 2; ++step) {
                mesh->counter().reset();
                gather_neighbors(cut, found);
                EXPECT_EQ(mesh->counter().num_calls(), 1);
                EXPECT_EQ(mesh->counter().total_bytes(), found.plan->num_ghosts() * 3 * 8);
            }
            mesh->counter().reset();
            const auto again = radius_search(cut, cut, radius);
            EXPECT_LT(mesh->counter().total_bytes(), 500);  // that ranks ask for the same as before
            EXPECT_TRUE(at::equal(again.ids, found.ids));
            auto moved = rows.of(points).clone();
            if (rank == 3) moved.add_(0.01);
            const auto other = from_local(moved, rows.spec);
            const auto search = radius_search(other, other, radius);
            EXPECT_NE(search.plan, found.plan);
        });
    }
}

TEST(AcceptanceA27, GhostsCostNoMoreMemoryThanTheirRows)
{
    const auto points = scattered(2000);
    const auto owners = point_partitions(points, 4)[0].second;
    run_ranks(4, [&](const auto& mesh) {
        const CutPoints rows(owners, mesh);
        const auto cut = rows.cut(points);
        const auto plan = knn(cut, cut, 8).plan;
        const auto x = at::ones({rows.ids.size(0), 256});
        const LiveBytes live;

        const auto local = with_ghosts(x, plan);

        // The result, what is sent, and what is received; nothing that grows with the whole.
        const auto row = 256 * 4;
        EXPECT_LE(live.peak(), row * (plan->num_local() + plan->num_sent() + 2 * plan->num_ghosts()) + (64 << 10));
        EXPECT_EQ(local.size(0), plan->num_local());
    });
}

TEST(AcceptanceA27, AStepOfMessagesCostsWhatItsRowsCost)
{
    constexpr std::int64_t n = 6000, width = 32;
    const auto points = scattered(n);
    const auto peak_of_step = [](const Neighbors& graph, const at::Tensor& features, const auto& wrap) {
        const LiveBytes live;
        auto own = features.clone().requires_grad_();
        auto nodes = own;
        for (int layer = 0; layer < 3; ++layer) {
            const auto sent = gather_neighbors(wrap(nodes), graph);
            nodes = nodes + (segment_reduce(sent.tanh(), graph.offsets, SegmentReduction::Sum).values +
                             segment_reduce(sent, graph.offsets, SegmentReduction::Max).values)
                                .tanh();
        }
        nodes.sum().backward();
        return live.peak();
    };
    const auto of_whole =
        peak_of_step(knn(points, points, 8), at::ones({n, width}), [](const at::Tensor& x) { return x; });
    for (const int ranks : {2, 4, 8}) {
        for (const auto& [name, owners] : point_partitions(points, ranks)) {
            run_ranks(ranks, [&, &name = name, &owners = owners](const auto& mesh) {
                const CutPoints rows(owners, mesh);
                const auto cut = rows.cut(points);
                const auto graph = knn(cut, cut, 8);
                const auto peak = peak_of_step(graph, at::ones({rows.ids.size(0), width}),
                                               [&](const at::Tensor& x) { return from_local(x, rows.spec); });

                const auto share = static_cast<double>(graph.plan->num_local()) / n;
                EXPECT_LE(static_cast<double>(peak), 1.05 * share * static_cast<double>(of_whole) + (64 << 10))
                    << name << ", " << ranks << " ranks, a share of " << share;
            });
        }
    }
}

}  // namespace
}  // namespace meshard
