// SPDX-License-Identifier: Apache-2.0
#include "ops/neighbors/neighbors.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/owner_maps.h"
#include "tests/support/rank_counts.h"
#include "tests/support/row_ids.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <random>
#include <set>

namespace meshard {
namespace {

/// How a tensor's rows lie on ranks; no owners: a plain tensor that all have.
using Owners = std::vector<int>;

at::Tensor laid_out(const at::Tensor& whole, const Owners& owners, const std::shared_ptr<const DeviceMesh>& mesh)
{
    if (owners.empty()) return whole.clone();
    const auto map = owned(owners, static_cast<int>(mesh->coordinate(0)));
    return from_local(whole.index_select(0, ids_of(*map)), shard_spec(map, mesh));
}

at::Tensor own_rows(std::int64_t n, const Owners& owners, const std::shared_ptr<const DeviceMesh>& mesh)
{
    return owners.empty() ? at::arange(n, at::kLong) : ids_of(*owned(owners, static_cast<int>(mesh->coordinate(0))));
}

at::Tensor own_part_of(const at::Tensor& gradient)
{
    return is_sharded(gradient) ? local_of(gradient) : gradient;
}

Owners draw_owners(std::mt19937_64& random, const at::Tensor& points, int ranks)
{
    const auto n = points.size(0);
    Owners owners(n);
    const auto kind = random() % 4;
    if (kind == 0) return {};
    const auto used = 1 + static_cast<int>(random() % ranks);
    const auto order = kind == 1 ? points.select(1, 0).argsort().argsort() : at::arange(n, at::kLong);  // slabs, ranges
    for (std::int64_t i = 0; i < n; ++i) {
        owners[i] = kind == 2 ? static_cast<int>(random() % used)
                              : static_cast<int>(order[i].item<std::int64_t>() * used / std::max<std::int64_t>(1, n));
    }
    return owners;
}

at::Tensor draw_points(std::mt19937_64& random, std::int64_t n, std::int64_t dimensions)
{
    const auto kind = random() % 4;
    auto points = at::empty({n, dimensions}, at::kDouble);
    for (std::int64_t i = 0; i < points.numel(); ++i) {
        const auto value = static_cast<double>(random() % 100003) / 100003;
        // Even, on a lattice with many equal ones, graded, all in one place.
        points.view({-1})[i] = kind == 0   ? value
                               : kind == 1 ? std::floor(4 * value) / 4
                               : kind == 2 ? std::pow(value, 5)
                                           : 0.5;
    }
    return points;
}

using Found = std::vector<std::pair<std::int64_t, std::int64_t>>;  // (query, point)

/// Every pair, looked at; ids in the order of (squared distance, id).
Found brute_force(const at::Tensor& points, const at::Tensor& queries, const at::Tensor& query_rows, std::int64_t k,
                  double radius, bool exclude_self, const std::vector<double>& period)
{
    Found found;
    for (std::int64_t q = 0; q < query_rows.numel(); ++q) {
        const auto query = query_rows[q].item<std::int64_t>();
        std::vector<std::pair<double, std::int64_t>> all;
        for (std::int64_t p = 0; p < points.size(0); ++p) {
            double sum = 0;
            for (std::int64_t d = 0; d < points.size(1); ++d) {
                double gap = std::abs(points[p][d].item<double>() - queries[query][d].item<double>());
                if (!period.empty()) gap = std::min(gap, period[d] - gap);
                sum += gap * gap;
            }
            if (sum <= radius * radius && !(exclude_self && p == query)) all.emplace_back(sum, p);
        }
        std::sort(all.begin(), all.end());
        if (static_cast<std::int64_t>(all.size()) > k) all.resize(k);
        for (const auto& [distance, p] : all) found.emplace_back(query, p);
    }
    return found;
}

Found pairs_of(const Neighbors& neighbors, const at::Tensor& query_rows)
{
    Found found;
    const auto* offsets = neighbors.offsets.const_data_ptr<std::int64_t>();
    for (std::int64_t q = 0; q < query_rows.numel(); ++q) {
        for (auto e = offsets[q]; e < offsets[q + 1]; ++e)
            found.emplace_back(query_rows[q].item<std::int64_t>(), neighbors.ids[e].item<std::int64_t>());
    }
    return found;
}

/// Those of this rank's queries.
Found of_queries_here(const Found& all, const Owners& owners, const std::shared_ptr<const DeviceMesh>& mesh)
{
    Found own;
    std::copy_if(all.begin(), all.end(), std::back_inserter(own),
                 [&](const auto& pair) { return owners[pair.first] == mesh->coordinate(0); });
    return own;
}

/// A number for every pair, so that gradients tell which pair they come from.
at::Tensor weights_of(const Found& pairs)
{
    std::vector<double> weights;
    for (const auto& [query, point] : pairs)
        weights.push_back(std::sin(1.3 * static_cast<double>(query) + 0.7 * static_cast<double>(point)));
    return at::tensor(weights, at::kDouble);
}

TEST(Neighbors, AreThoseOfTheWholeOnAnyPartition)
{
    std::mt19937_64 random(11);
    for (int trial = 0; trial < 80; ++trial) {
        const int ranks = kRankCounts[trial % 7];
        const auto dimensions = static_cast<std::int64_t>(1 + random() % 3);
        const auto points = draw_points(random, random() % 40, dimensions);
        const bool on_themselves = random() % 2 == 0;
        const auto queries = on_themselves ? points : draw_points(random, random() % 20, dimensions);
        const auto point_owners = draw_owners(random, points, ranks),
                   query_owners = draw_owners(random, queries, ranks);
        const bool is_knn = random() % 2 == 0;
        const auto k = static_cast<std::int64_t>(random() % 2 == 0 ? 1 + random() % 9 : 60);
        const double radius = 0.03 + static_cast<double>(random() % 100) / 150;
        NeighborOptions options{.exclude_self = on_themselves && random() % 2 == 0};
        if (random() % 3 == 0) options.period.assign(dimensions, 1.0);
        const auto what = "trial " + std::to_string(trial) + ": " + std::to_string(points.size(0)) +
                          (point_owners.empty() ? " plain" : " cut") + " points, " + std::to_string(queries.size(0)) +
                          (query_owners.empty() ? " plain" : " cut") + " queries in " + std::to_string(dimensions) +
                          " dimensions on " + std::to_string(ranks) + " ranks, k " + std::to_string(k) +
                          (is_knn ? "" : ", radius " + std::to_string(radius)) +
                          (options.exclude_self ? ", without themselves" : "") +
                          (options.period.empty() ? "" : ", periodic");
        SCOPED_TRACE(what);

        const auto features = at::arange(points.size(0) * 2, at::kDouble).mul(0.9).cos().view({-1, 2});
        const auto run = [&](const at::Tensor& p, const at::Tensor& q) {
            return is_knn ? knn(p, q, k, options) : radius_search(p, q, radius, k, options);
        };
        const auto loss_of = [&](const Neighbors& found, const at::Tensor& f, const at::Tensor& weights) {
            return (found.distances * weights).sum() + (gather_neighbors(f, found).prod(1) * weights).sum();
        };
        // Serially.
        auto p0 = points.clone().requires_grad_(), q0 = queries.clone().requires_grad_(),
             f0 = features.clone().requires_grad_();
        const auto serial = run(p0, q0);
        const auto all_pairs = pairs_of(serial, at::arange(queries.size(0), at::kLong));
        loss_of(serial, f0, weights_of(all_pairs)).backward();

        run_ranks(ranks, [&](const auto& mesh) {
            const auto rows = own_rows(queries.size(0), query_owners, mesh),
                       point_rows = own_rows(points.size(0), point_owners, mesh);
            auto p = laid_out(points, point_owners, mesh).requires_grad_(),
                 q = laid_out(queries, query_owners, mesh).requires_grad_();
            auto f = laid_out(features, point_owners, mesh).requires_grad_();

            const auto found = run(p, q);

            const auto expected =
                brute_force(points, queries, rows, k, is_knn ? 1e9 : radius, options.exclude_self, options.period);
            const auto pairs = pairs_of(found, rows);
            ASSERT_EQ(pairs, expected) << what;  // the trace is the starting thread's
            loss_of(found, f, weights_of(pairs)).backward();
            EXPECT_TRUE(tensors_near(own_part_of(p.grad()), p0.grad().index_select(0, point_rows), 1e-12));
            EXPECT_TRUE(tensors_near(own_part_of(q.grad()), q0.grad().index_select(0, rows), 1e-12));
            EXPECT_TRUE(tensors_near(own_part_of(f.grad()), f0.grad().index_select(0, point_rows), 1e-12));
        });
    }
}

TEST(Neighbors, OfStrangeCloudsAreThoseOfTheWhole)
{
    const auto line = at::arange(30, at::kDouble).view({30, 1});
    struct Cloud {
        const char* name;
        at::Tensor points;
        double period;
    };
    const Cloud clouds[] = {
        {"all in one place", at::full({30, 3}, 0.25, at::kDouble), 0},
        {"two places", line.remainder(2).expand({30, 2}).contiguous(), 0},
        {"a line", line.mul(0.1), 0},
        {"a ring", line.mul(0.125), 3.75},
        {"a plane lattice on a torus", at::cat({line.remainder(6), line.div(6).floor()}, 1), 6},
        {"one far away",
         at::cat({line.narrow(0, 0, 29).mul(1e-3), at::full({1, 1}, 1e12, at::kDouble)}).expand({30, 3}).contiguous(),
         0},
        {"one point", at::zeros({1, 3}, at::kDouble), 0},
        {"nothing", at::zeros({0, 2}, at::kDouble), 0}};
    const std::pair<std::int64_t, double> searches[] = {{1, 0},   {5, 0},     {100, 0}, {100, 1e-9},
                                                        {5, 0.2}, {100, 1e15}};  // k, radius; 0: the nearest
    for (const auto& [name, points, period] : clouds) {
        const auto n = points.size(0);
        NeighborOptions options;
        if (period > 0) options.period.assign(points.size(1), period);
        std::vector<Found> expected;
        for (const auto& [k, radius] : searches)
            expected.push_back(brute_force(points, points, at::arange(n, at::kLong), k, radius > 0 ? radius : 1e30,
                                           false, options.period));
        for (const int ranks : {3, 8}) {
            Owners last(n, ranks - 1), turns(n), turned(n);
            for (std::int64_t i = 0; i < n; ++i) {
                turns[i] = static_cast<int>(i % ranks);
                turned[i] = static_cast<int>((i / 3 + 1) % ranks);
            }
            for (const auto& [of_points, of_queries] :
                 {std::pair(last, last), {last, turns}, {turns, last}, {turns, turned}, {Owners(), turns}}) {
                run_ranks(ranks, [&, &of_points = of_points, &of_queries = of_queries, &points = points,
                                  &name = name](const auto& mesh) {
                    const auto rows = own_rows(n, of_queries, mesh);
                    for (std::size_t s = 0; s < std::size(searches); ++s) {
                        const auto& [k, radius] = searches[s];
                        auto p = laid_out(points, of_points, mesh).requires_grad_(),
                             q = laid_out(points, of_queries, mesh).requires_grad_();

                        const auto found = radius > 0 ? radius_search(p, q, radius, k, options) : knn(p, q, k, options);

                        ASSERT_EQ(pairs_of(found, rows), of_queries_here(expected[s], of_queries, mesh))
                            << name << " on " << ranks << " ranks, k " << k << ", radius " << radius;
                        found.distances.sum().backward();  // of distances that are 0, too
                        EXPECT_TRUE(own_part_of(p.grad()).isfinite().all().template item<bool>()) << name;
                    }
                });
            }
        }
    }
}

TEST(Neighbors, TakeNarrowTypesAndRowsThatLieApart)
{
    const auto lattice = at::arange(60, at::kDouble);
    const auto points =
        at::stack({lattice.remainder(4), lattice.div(4).floor().remainder(4), lattice.div(16).floor()}, 1).mul(0.25);
    const auto features = at::arange(120, at::kDouble).remainder(7).sub(3).view({60, 2});
    const auto lay_apart = [](const at::Tensor& rows) { return rows.t().contiguous().t(); };
    for (const auto type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
        const auto loss_of = [](const at::Tensor& f, const Neighbors& found) {
            return (gather_neighbors(f, found) * found.ids.remainder(3).sub(1).unsqueeze(1)).sum();
        };
        auto p0 = points.to(type).clone().requires_grad_(), f0 = features.to(type).clone().requires_grad_();
        const auto serial = knn(p0, p0, 7), within = radius_search(points.to(type), points.to(type), 0.5);
        const auto all_pairs = pairs_of(serial, at::arange(60, at::kLong)),
                   all_within = pairs_of(within, at::arange(60, at::kLong));
        EXPECT_EQ(all_pairs, brute_force(points, points, at::arange(60, at::kLong), 7, 1e9, false,
                                         {}));  // a lattice is the same in all types
        EXPECT_EQ(all_within, brute_force(points, points, at::arange(60, at::kLong), 60, 0.5, false, {}));
        EXPECT_TRUE(at::equal(serial.distances.detach(), knn(p0.detach(), p0.detach(), 7).distances))
            << at::toString(type);
        (loss_of(f0, serial) + serial.distances.sum()).backward();
        for (const int ranks : {2, 5}) {
            Owners owners(60);
            for (int i = 0; i < 60; ++i) owners[i] = i * i % 7 % ranks;
            run_ranks(ranks, [&](const auto& mesh) {
                const auto rows = own_rows(60, owners, mesh);
                const auto spec = shard_spec(owned(owners, static_cast<int>(mesh->coordinate(0))), mesh);
                const auto cut = [&](const at::Tensor& whole) {
                    return from_local(lay_apart(whole.index_select(0, rows).to(type)), spec);
                };
                auto p = cut(points).requires_grad_(), f = cut(features).requires_grad_();
                EXPECT_FALSE(rows.numel() > 1 && local_of(p).is_contiguous());

                const auto found = knn(p, p, 7);

                EXPECT_EQ(pairs_of(found, rows), of_queries_here(all_pairs, owners, mesh));
                EXPECT_EQ(pairs_of(radius_search(p.detach(), p.detach(), 0.5), rows),
                          of_queries_here(all_within, owners, mesh));
                EXPECT_EQ(found.distances.scalar_type(), type);
                (loss_of(f, found) + found.distances.sum()).backward();
                EXPECT_TRUE(at::equal(own_part_of(f.grad()), f0.grad().index_select(0, rows)));  // whole numbers
                EXPECT_TRUE(tensors_near(own_part_of(p.grad()), p0.grad().index_select(0, rows),
                                         type == at::kDouble  ? 1e-14
                                         : type == at::kFloat ? 1e-6
                                                              : 2e-2));
            });
        }
    }
}

TEST(Neighbors, HaveTheGradientOfFiniteDifferences)
{
    const auto points = at::rand({30, 3}, at::kDouble), queries = at::rand({10, 3}, at::kDouble);
    auto p = points.clone().requires_grad_();
    knn(p, queries, 4).distances.square().sum().backward();

    for (const int i : {0, 13, 89}) {
        const double step = 1e-6;
        const auto moved = [&](double by) {
            auto other = points.clone();
            other.view({-1})[i] += by;
            return knn(other, queries, 4).distances.square().sum().item<double>();
        };
        EXPECT_NEAR(p.grad().view({-1})[i].item<double>(), (moved(step) - moved(-step)) / (2 * step), 1e-8);
    }
}

TEST(Neighbors, FetchPointsWithinReachAndNoOthers)
{
    std::mt19937_64 random(5);
    std::uniform_real_distribution<double> unit(0, 1);
    constexpr std::int64_t n = 20000;
    auto points = at::empty({n, 3}, at::kFloat);
    for (std::int64_t i = 0; i < points.numel(); ++i)
        points.mutable_data_ptr<float>()[i] = static_cast<float>(unit(random));
    const double radius = std::cbrt(17 / (4.18879 * n));
    Owners owners(n);  // octants
    for (std::int64_t i = 0; i < n; ++i) {
        const auto* x = points.const_data_ptr<float>() + 3 * i;
        owners[i] = (x[0] > 0.5f) + 2 * (x[1] > 0.5f) + 4 * (x[2] > 0.5f);
    }
    const auto all = radius_search(points, points, radius);
    const auto nearest = knn(points, points, 16);
    const auto* offsets = all.offsets.const_data_ptr<std::int64_t>();
    const auto* ids = all.ids.const_data_ptr<std::int64_t>();
    run_ranks(8, [&](const auto& mesh) {
        const auto rank = static_cast<int>(mesh->coordinate(0));
        std::set<std::int64_t> within_reach;
        for (std::int64_t i = 0; i < n; ++i) {
            for (auto e = offsets[i]; owners[i] == rank && e < offsets[i + 1]; ++e) {
                if (owners[ids[e]] != rank) within_reach.insert(ids[e]);
            }
        }
        const auto cut = laid_out(points, owners, mesh);
        mesh->counter().reset();

        const auto found = radius_search(cut, cut, radius);

        const auto num_needed = static_cast<std::int64_t>(within_reach.size()), num_ghosts = found.plan->num_ghosts();
        EXPECT_GE(num_ghosts, num_needed);
        EXPECT_LE(num_ghosts,
                  num_needed +
                      num_needed / 16);  // questions are cells around queries: as wide as makes all bytes fewest
        EXPECT_LT(mesh->counter().total_bytes(), 22 * num_needed + 12'000);  // 12 a point; ids, cells; boxes
        mesh->counter().reset();
        gather_neighbors(cut, found);
        EXPECT_EQ(mesh->counter().total_bytes(), num_ghosts * 12);
        EXPECT_EQ(mesh->counter().num_calls(), 1);

        const auto near = knn(cut, cut, 16);
        const auto rows = own_rows(n, owners, mesh);
        EXPECT_TRUE(at::equal(near.ids.view({-1, 16}), nearest.ids.view({-1, 16}).index_select(0, rows)));
        EXPECT_LT(near.plan->num_ghosts(), 3 * found.plan->num_ghosts());
    });
}

TEST(Neighbors, SeveralRadiiGiveWhatEachAloneGives)
{
    std::mt19937_64 random(6);
    const auto points = draw_points(random, 50, 3);
    run_ranks(3, [&](const auto& mesh) {
        Owners owners(50);
        for (int i = 0; i < 50; ++i) owners[i] = i % 3;
        const auto cut = laid_out(points, owners, mesh);
        const std::vector<RadiusLimit> limits{{0.1, 3}, {0.4, kAllNeighbors}, {0.9, 8}};

        const auto together = radius_search(cut, cut, limits);

        for (std::size_t i = 0; i < limits.size(); ++i) {
            const auto alone = radius_search(cut, cut, limits[i].radius, limits[i].max_neighbors);
            EXPECT_TRUE(at::equal(together[i].ids, alone.ids));
            EXPECT_TRUE(at::equal(together[i].offsets, alone.offsets));
        }
        const auto whole = radius_search(points, points, 0.4, 5, {.order = NeighborOrder::Grid});
        const auto walked = radius_search(cut, cut, 0.4, 5, {.order = NeighborOrder::Grid});
        const auto rows = own_rows(50, owners, mesh);
        EXPECT_EQ(pairs_of(walked, rows), of_queries_here(pairs_of(whole, at::arange(50, at::kLong)), owners, mesh));
    });
}

TEST(Neighbors, AreTheSameOnThreads)
{
    const auto points = at::rand({20000, 3});
    const int before = at::get_num_threads();
    const auto alone = knn(points, points, 8);
    at::set_num_threads(4);
    const auto together = knn(points, points, 8);
    at::set_num_threads(before);

    EXPECT_TRUE(at::equal(together.ids, alone.ids));
    EXPECT_TRUE(at::equal(together.distances, alone.distances));
}

TEST(Neighbors, OfABatchAreThoseOfEachCloud)
{
    std::mt19937_64 random(7);
    const auto points = at::stack({draw_points(random, 20, 2), draw_points(random, 20, 2)}),
               queries = points.narrow(1, 3, 6) + 0.01;
    const auto features = at::arange(40, at::kDouble).view({2, 20, 1});

    const auto found = knn(points, queries, 3);

    for (std::int64_t b = 0; b < 2; ++b) {
        const auto one = knn(points[b], queries[b], 3);
        EXPECT_TRUE(at::equal(found.ids.narrow(0, 18 * b, 18), one.ids));
        EXPECT_TRUE(
            at::equal(gather_neighbors(features, found).narrow(0, 18 * b, 18), gather_neighbors(features[b], one)));
    }
}

TEST(Neighbors, OfABatchWhosePointsAndQueriesLieInDifferentWays)
{
    std::mt19937_64 random(8);
    std::vector<at::Tensor> some_points, some_queries;
    for (int b = 0; b < 3; ++b) {
        some_points.push_back(draw_points(random, 20, 2));
        some_queries.push_back(draw_points(random, 13, 2));
    }
    const auto points = at::stack(some_points), queries = at::stack(some_queries),
               features = at::arange(120, at::kDouble).mul(0.9).cos().view({3, 20, 2});
    const auto loss_of = [](const Neighbors& found, const at::Tensor& f) {
        return (found.distances * (found.ids * 0.7).sin()).sum() + gather_neighbors(f, found).square().sum();
    };
    auto p0 = points.clone().requires_grad_(), q0 = queries.clone().requires_grad_(),
         f0 = features.clone().requires_grad_();
    const auto serial = knn(p0, q0, 4);
    loss_of(serial, f0).backward();
    for (const int ranks : {2, 3, 5, 8}) {
        Owners turns(20), runs(13);
        for (int i = 0; i < 20; ++i) turns[i] = i * i % 7 % ranks;
        for (int i = 0; i < 13; ++i) runs[i] = i * ranks / 15;
        for (const auto& [of_points, of_queries] : {std::pair(turns, runs), {turns, Owners()}, {Owners(), runs}}) {
            run_ranks(ranks, [&, &of_points = of_points, &of_queries = of_queries](const auto& mesh) {
                const auto lay = [&](const at::Tensor& whole, const Owners& owners) {
                    if (owners.empty()) return whole.clone().requires_grad_();
                    const auto map = owned(owners, static_cast<int>(mesh->coordinate(0)));
                    return from_local(whole.index_select(1, ids_of(*map)), shard_spec(map, mesh, 1)).requires_grad_();
                };
                const auto own_points = own_rows(20, of_points, mesh), own_queries = own_rows(13, of_queries, mesh);
                auto p = lay(points, of_points), q = lay(queries, of_queries), f = lay(features, of_points);

                const auto found = knn(p, q, 4);
                loss_of(found, f).backward();

                EXPECT_TRUE(
                    at::equal(found.ids.view({3, -1, 4}), serial.ids.view({3, 13, 4}).index_select(1, own_queries)));
                EXPECT_TRUE(tensors_near(own_part_of(p.grad()), p0.grad().index_select(1, own_points), 1e-12));
                EXPECT_TRUE(tensors_near(own_part_of(q.grad()), q0.grad().index_select(1, own_queries), 1e-12));
                EXPECT_TRUE(tensors_near(own_part_of(f.grad()), f0.grad().index_select(1, own_points), 1e-12));
            });
        }
    }
}

TEST(Neighbors, RefuseOnEveryRank)
{
    run_ranks(3, [](const auto& mesh) {
        const auto rank = mesh->coordinate(0);
        const auto cut = [&](const at::Tensor& local) { return from_local(local, mesh, {Shard(0)}); };
        const auto good = cut(at::rand({4, 3}, at::kDouble));
        auto spoiled = at::rand({4, 3}, at::kDouble);
        if (rank == 1) spoiled[2][0] = std::nan("");
        EXPECT_THROW(knn(cut(spoiled), good, 2), InvalidInput);
        EXPECT_THROW(radius_search(good, cut(spoiled), 0.5), InvalidInput);
        for (const double radius : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
            EXPECT_THROW(radius_search(good, good, rank == 0 ? radius : 0.5), InvalidInput);
        }
        EXPECT_THROW(knn(good, good, rank == 2 ? 0 : 1), InvalidInput);
        EXPECT_THROW(knn(good, good, rank == 2 ? 3 : 4), InvalidInput);  // ranks differ
        EXPECT_THROW(knn(good, cut(at::rand({4, 2}, at::kDouble)), 1), InvalidInput);
        EXPECT_THROW(knn(good, cut(at::rand({4, 3}, at::kFloat)), 1), InvalidInput);
        EXPECT_THROW(knn(good, good, 1, {.period = {1, -1, 1}}), InvalidInput);
        EXPECT_THROW(knn(good, good, 1, {.order = NeighborOrder::Grid}), InvalidInput);
        const auto found = knn(good, good, 2);
        EXPECT_THROW(gather_neighbors(cut(at::ones({rank == 0 ? 5 : 4, 1})), found), InvalidInput);  // another layout
        EXPECT_THROW(gather_neighbors(at::ones({12, 1}), found), InvalidInput);
    });
}

}  // namespace
}  // namespace meshard
