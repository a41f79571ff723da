// SPDX-License-Identifier: Apache-2.0
#include "ops/surface/surface_distance.h"
#include "ops/surface/surface_search.h"
#include "ops/surface/winding_number.h"
#include "partition/error.h"
#include "partition/mesh/vector_algebra.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/owner_maps.h"
#include "tests/support/point_partitions.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace meshard {
namespace {

struct Surface {
    at::Tensor vertices, faces;
};

/// Surface of the unit cube as an STL file has it: twelve triangles that share no vertex numbers.
Surface cube_of_loose_triangles()
{
    constexpr int corners[6][4] = {{0, 2, 3, 1}, {4, 5, 7, 6}, {0, 1, 5, 4},
                                   {2, 6, 7, 3}, {0, 4, 6, 2}, {1, 3, 7, 5}};  // bits: x, y, z
    std::vector<double> vertices;
    for (const auto& side : corners) {
        for (const int k : {0, 1, 2, 0, 2, 3}) {
            for (int d = 0; d < 3; ++d) vertices.push_back(side[k] >> d & 1);
        }
    }
    return {at::tensor(vertices, at::kDouble).view({36, 3}), at::arange(36, at::kLong).view({12, 3})};
}

double distance_to_unit_cube(const Vector3& x)
{
    double outside = 0, inside = -1;
    for (const double value : x) {
        const double beyond = std::abs(value - 0.5) - 0.5;
        outside += std::pow(std::max(0.0, beyond), 2);
        inside = std::max(inside, beyond);
    }
    return inside > 0 ? std::sqrt(outside) : inside;
}

/// A closed bumpy body, latitude rings of `n`, right-handed from outside.
Surface bumpy_body(int n)
{
    const int around = 2 * n;
    std::vector<double> vertices{0, 0, 1.2, 0, 0, -1.1};
    std::vector<std::int64_t> faces;
    const auto at_ring = [&](int ring, int k) { return std::int64_t{2} + (ring - 1) * around + k % around; };
    for (int ring = 1; ring < n; ++ring) {
        for (int k = 0; k < around; ++k) {
            const double theta = M_PI * ring / n, phi = 2 * M_PI * k / around,
                         r = 1 + 0.2 * std::sin(3 * theta) * std::cos(4 * phi);
            vertices.insert(vertices.end(), {r * std::sin(theta) * std::cos(phi), r * std::sin(theta) * std::sin(phi),
                                             r * std::cos(theta)});
        }
    }
    for (int k = 0; k < around; ++k) {
        faces.insert(faces.end(), {0, at_ring(1, k), at_ring(1, k + 1), 1, at_ring(n - 1, k + 1), at_ring(n - 1, k)});
        for (int ring = 1; ring + 1 < n; ++ring) {
            faces.insert(faces.end(), {at_ring(ring, k), at_ring(ring + 1, k), at_ring(ring + 1, k + 1),
                                       at_ring(ring, k), at_ring(ring + 1, k + 1), at_ring(ring, k + 1)});
        }
    }
    return {at::tensor(vertices, at::kDouble).view({-1, 3}), at::tensor(faces, at::kLong).view({-1, 3})};
}

at::Tensor draw_queries(std::uint64_t seed, std::int64_t n, double spread)
{
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<double> unit(-spread, spread);
    auto queries = at::empty({n, 3}, at::kDouble);
    for (std::int64_t i = 0; i < queries.numel(); ++i) queries.view({-1})[i] = unit(random);
    return queries;
}

Vector3 row_of(const at::Tensor& rows, std::int64_t i)
{
    return {rows[i][0].item<double>(), rows[i][1].item<double>(), rows[i][2].item<double>()};
}

TriangleSurface surface_of(const Surface& surface)
{
    const auto* v = surface.vertices.const_data_ptr<double>();
    const auto* f = surface.faces.const_data_ptr<std::int64_t>();
    return {{v, v + surface.vertices.numel()}, {f, f + surface.faces.numel()}};
}

/// Distance to a triangle by its regions (Ericson 2004, Real-Time Collision Detection, 5.1.5).
double distance_by_regions(const Vector3& p, const Vector3& a, const Vector3& b, const Vector3& c)
{
    const Vector3 ab = b - a, ac = c - a;
    const double d1 = dot(ab, p - a), d2 = dot(ac, p - a), d3 = dot(ab, p - b), d4 = dot(ac, p - b),
                 d5 = dot(ab, p - c), d6 = dot(ac, p - c);
    if (d1 <= 0 && d2 <= 0) return norm(p - a);
    if (d3 >= 0 && d4 <= d3) return norm(p - b);
    if (d6 >= 0 && d5 <= d6) return norm(p - c);
    const double vc = d1 * d4 - d3 * d2, vb = d5 * d2 - d1 * d6, va = d3 * d6 - d5 * d4;
    if (vc <= 0 && d1 >= 0 && d3 <= 0) return norm(p - (a + d1 / (d1 - d3) * ab));
    if (vb <= 0 && d2 >= 0 && d6 <= 0) return norm(p - (a + d2 / (d2 - d6) * ac));
    if (va <= 0 && d4 - d3 >= 0 && d5 - d6 >= 0) return norm(p - (b + (d4 - d3) / (d4 - d3 + d5 - d6) * (c - b)));
    return norm(p - (a + vb / (va + vb + vc) * ab + vc / (va + vb + vc) * ac));
}

class SurfaceDistanceTest : public ::testing::Test {
protected:
    void SetUp() override
    {
        if (!has_surface_search()) GTEST_SKIP() << "built without Embree";
    }
};

TEST_F(SurfaceDistanceTest, OfACubeIsThatOfTheFormula)
{
    const auto cube = cube_of_loose_triangles();
    auto queries = draw_queries(1, 3000, 1.5) + 0.5;
    queries.narrow(0, 0, 500).copy_(
        queries.narrow(0, 0, 500).mul(4).round().div(4));  // above edges and corners, and on the surface
    for (const auto sign : {SurfaceSign::PseudoNormal, SurfaceSign::WindingNumber}) {
        const auto found = signed_distance(cube.vertices, cube.faces, queries, {.sign = sign});

        for (std::int64_t i = 0; i < queries.size(0); ++i) {
            const double expected = distance_to_unit_cube(row_of(queries, i)),
                         value = found.distances[i].item<double>();
            EXPECT_NEAR(expected == 0 ? std::abs(value) : value, expected, 2e-15)
                << row_of(queries, i)[0] << " " << row_of(queries, i)[1] << " " << row_of(queries, i)[2];
            EXPECT_TRUE(value != 0 || !std::signbit(value)) << "on the surface nothing sums over all triangles";
        }
        EXPECT_LE((found.directions.square().sum(1) - 1).abs().max().item<double>(), 1e-14);
    }
}

TEST_F(SurfaceDistanceTest, IsThatOfLookingAtEveryTriangle)
{
    std::mt19937_64 random(2);
    std::uniform_real_distribution<double> unit(-1, 1);
    for (const double offset : {0.0, 1e4}) {  // far from the origin single precision has few digits left
        std::vector<double> vertices;
        for (int t = 0; t < 300; ++t) {
            const Vector3 at{unit(random), unit(random), unit(random)};
            for (int k = 0; k < 3; ++k) {
                // The last ones have no area.
                for (int d = 0; d < 3; ++d)
                    vertices.push_back(offset + at[d] + (t > 290 ? 0.1 * k * (t % 2) : 0.2 * unit(random)));
            }
        }
        const Surface soup{at::tensor(vertices, at::kDouble).view({-1, 3}), at::arange(900, at::kLong).view({300, 3})};
        const auto queries = draw_queries(3, 400, 1.5) + offset;
        const auto surface = surface_of(soup);

        const auto found = signed_distance(soup.vertices, soup.faces, queries);

        for (std::int64_t i = 0; i < queries.size(0); ++i) {
            const auto query = row_of(queries, i);
            double nearest = INFINITY, of_face = INFINITY;
            for (std::int64_t f = 0; f < 300; ++f) {
                const bool has_area = norm(cross(surface.corner(f, 1) - surface.corner(f, 0),
                                                 surface.corner(f, 2) - surface.corner(f, 0))) > 1e-9;
                const double distance = has_area ? distance_by_regions(query, surface.corner(f, 0),
                                                                       surface.corner(f, 1), surface.corner(f, 2))
                                                 : std::sqrt(surface.nearest(f, query).distance_squared);
                nearest = std::min(nearest, distance);
                if (found.faces[i].item<std::int64_t>() == f) of_face = distance;
            }
            EXPECT_NEAR(std::abs(found.distances[i].item<double>()), nearest, 1e-15 * std::max(10.0, 10 * offset));
            EXPECT_NEAR(of_face, nearest, 1e-15 * std::max(10.0, 10 * offset));
            EXPECT_NEAR(norm(row_of(found.points, i) - query), nearest, 1e-15 * std::max(10.0, 10 * offset));
        }
    }
}

TEST_F(SurfaceDistanceTest, HasNoResultBeyondTheMaximum)
{
    const auto cube = cube_of_loose_triangles();
    const auto queries = at::tensor({0.5, 0.5, 1.25, 0.5, 0.5, 1.2500000001, 0.5, 0.5, 0.75}, at::kDouble).view({3, 3});

    const auto found = signed_distance(cube.vertices, cube.faces, queries, {.max_distance = 0.25});

    EXPECT_EQ(found.distances[0].item<double>(), 0.25);
    EXPECT_TRUE(std::isnan(found.distances[1].item<double>()));
    EXPECT_EQ(found.faces[1].item<std::int64_t>(), -1);
    EXPECT_EQ(found.distances[2].item<double>(), -0.25);
}

TEST_F(SurfaceDistanceTest, OfCutQueriesIsThatOfTheWhole)
{
    const auto body = bumpy_body(8);
    const auto queries = draw_queries(4, 60, 1.6), weights = at::arange(60, at::kDouble).sin();
    auto v0 = body.vertices.clone().requires_grad_(), q0 = queries.clone().requires_grad_();
    const auto whole = signed_distance(v0, body.faces, q0);
    (whole.distances * weights).sum().backward();
    for (const int ranks : {1, 2, 3, 5}) {
        std::vector<int> owners(60), vertex_owners(body.vertices.size(0)), face_owners(body.faces.size(0));
        for (int i = 0; i < 60; ++i)
            owners[i] = i * i % 7 % std::max(1, ranks - (ranks > 2));  // the last rank of many has none
        for (std::size_t i = 0; i < vertex_owners.size(); ++i) vertex_owners[i] = static_cast<int>(i * 5 % ranks);
        for (std::size_t i = 0; i < face_owners.size(); ++i) face_owners[i] = static_cast<int>(i / 3 % ranks);
        run_ranks(ranks, [&](const auto& mesh) {
            const auto rows_of = [&](const std::vector<int>& all) {
                return owned(all, static_cast<int>(mesh->coordinate(0)));
            };
            const auto own = [&](const at::Tensor& tensor, const std::vector<int>& all) {
                return tensor.index_select(0, at::tensor(rows_of(all)->global_ids, at::kLong));
            };
            const auto query_spec = shard_spec(rows_of(owners), mesh),
                       vertex_spec = shard_spec(rows_of(vertex_owners), mesh);
            auto q = own(queries, owners).requires_grad_(), v = body.vertices.clone().requires_grad_();
            auto cut_v = own(body.vertices, vertex_owners).requires_grad_();
            const auto cut_f = from_local(own(body.faces, face_owners), shard_spec(rows_of(face_owners), mesh));

            mesh->counter().reset();
            const auto of_plain = signed_distance(v.detach(), body.faces, from_local(q.detach(), query_spec));
            EXPECT_LE(mesh->counter().total_bytes(), 64 * ranks);  // queries and surface stay where they are
            const auto found = signed_distance(v, body.faces, from_local(q, query_spec));
            const auto of_cut = signed_distance(from_local(cut_v, vertex_spec), cut_f, from_local(q, query_spec));

            for (const auto& result : {of_plain, found, of_cut}) {
                EXPECT_TRUE(at::equal(local_of(result.distances.detach()), own(whole.distances.detach(), owners)));
                EXPECT_TRUE(at::equal(local_of(result.points), own(whole.points, owners)));
                EXPECT_TRUE(at::equal(local_of(result.directions), own(whole.directions, owners)));
                EXPECT_TRUE(at::equal(local_of(result.faces), own(whole.faces, owners)));
            }
            const auto own_weights = own(weights, owners);
            (to_local(found.distances) * own_weights).sum().backward();
            EXPECT_TRUE(tensors_near(q.grad(), own(q0.grad(), owners), 1e-14));
            EXPECT_TRUE(tensors_near(v.grad(), v0.grad(), 1e-13));
            (to_local(of_cut.distances) * own_weights).sum().backward();
            EXPECT_TRUE(tensors_near(cut_v.grad(), own(v0.grad(), vertex_owners), 1e-13));
        });
    }
}

/// Acceptance A15.
TEST_F(SurfaceDistanceTest, IsThatOfOneRankOnEveryPartition)
{
    const auto body = bumpy_body(6);
    // Far and near, on the surface, at its corners, and half of them at one place.
    const auto corners = body.vertices.narrow(0, 0, 8),
               middles = body.vertices.index_select(0, body.faces.narrow(0, 0, 8).flatten()).view({8, 3, 3}).mean(1);
    const auto queries = at::cat({draw_queries(4, 40, 1.6), corners, middles, at::full({16, 3}, 0.1, at::kDouble)});
    const auto face_middles = body.vertices.index_select(0, body.faces.flatten()).view({-1, 3, 3}).mean(1);
    const SurfaceDistanceOptions kinds[] = {{}, {.sign = SurfaceSign::WindingNumber}, {.max_distance = 0.4}};
    std::vector<SurfaceDistance> expected;
    for (const auto& options : kinds) expected.push_back(signed_distance(body.vertices, body.faces, queries, options));
    for (const int ranks : {1, 2, 3, 4, 5, 7, 8}) {
        const auto of_queries = point_partitions(queries, ranks), of_faces = point_partitions(face_middles, ranks),
                   of_vertices = point_partitions(body.vertices, ranks);
        for (std::size_t k = 0; k < of_queries.size(); ++k) {
            const auto& [name, owners] = of_queries[k];
            SCOPED_TRACE(name + " partition, " + std::to_string(ranks) + " ranks");
            run_ranks(ranks, [&, &owners = owners](const auto& mesh) {
                const CutPoints rows(owners, mesh), faces(of_faces[k].second, mesh),
                    vertices(of_vertices[k].second, mesh);
                const auto same = [](const at::Tensor& found, const at::Tensor& of_whole) {
                    return at::equal(local_of(found).nan_to_num(9), of_whole.nan_to_num(9));
                };
                for (std::size_t o = 0; o < std::size(kinds); ++o) {
                    const auto found = signed_distance(vertices.cut(body.vertices), faces.cut(body.faces),
                                                       rows.cut(queries), kinds[o]);

                    EXPECT_TRUE(same(found.distances, rows.of(expected[o].distances))) << "options " << o;
                    EXPECT_TRUE(same(found.points, rows.of(expected[o].points))) << "options " << o;
                    EXPECT_TRUE(same(found.directions, rows.of(expected[o].directions))) << "options " << o;
                    EXPECT_TRUE(same(found.faces, rows.of(expected[o].faces))) << "options " << o;
                }
            });
        }
    }
}

TEST_F(SurfaceDistanceTest, GradientsAreThoseOfFiniteDifferences)
{
    const auto body = bumpy_body(5);
    auto vertices = body.vertices.clone().requires_grad_(), queries = draw_queries(5, 12, 1.4).requires_grad_();
    const auto weights = at::arange(12, at::kDouble).add(1).cos();
    const auto loss = [&](const at::Tensor& v, const at::Tensor& q) {
        return (signed_distance(v, body.faces, q).distances * weights).sum();
    };

    const auto found = signed_distance(vertices, body.faces, queries);
    (found.distances * weights).sum().backward();

    EXPECT_TRUE(tensors_near(queries.grad(), found.directions * weights.unsqueeze(1), 1e-14));
    constexpr double step = 1e-5;
    const auto difference = [&](const at::Tensor& of, std::int64_t i, bool is_vertex) {
        const auto moved = [&](double by) {
            auto there = of.detach().clone();
            there.view({-1})[i] += by;
            return (is_vertex ? loss(there, queries.detach()) : loss(vertices.detach(), there)).item<double>();
        };
        return (moved(step) - moved(-step)) / (2 * step);
    };
    for (std::int64_t i = 0; i < queries.numel(); ++i)
        EXPECT_NEAR(queries.grad().view({-1})[i].item<double>(), difference(queries, i, false), 1e-8);
    for (std::int64_t i = 0; i < vertices.numel(); i += 7)
        EXPECT_NEAR(vertices.grad().view({-1})[i].item<double>(), difference(vertices, i, true), 1e-8);
}

TEST(WindingNumber, ApproximationStaysNearTheSum)
{
    const auto body = bumpy_body(16);
    for (const std::int64_t num_faces : {body.faces.size(0), body.faces.size(0) * 2 / 3}) {  // closed, and with a hole
        const auto surface = surface_of({body.vertices, body.faces.narrow(0, 0, num_faces).contiguous()});
        const WindingNumber winding(surface);
        const auto queries = draw_queries(6, 500, 1.6);
        int num_inside = 0;
        for (std::int64_t i = 0; i < queries.size(0); ++i) {
            const auto query = row_of(queries, i);
            const double exact = winding.exact(query);

            EXPECT_NEAR(winding.approximate(query), exact, 0.05);
            EXPECT_EQ(winding.is_inside(query), exact > 0.5);
            if (num_faces == body.faces.size(0)) {
                EXPECT_NEAR(exact, std::round(exact), 1e-12);
            }
            num_inside += exact > 0.5;
        }
        EXPECT_GT(num_inside, 50);
        EXPECT_LT(num_inside, 450);
    }
}

TEST_F(SurfaceDistanceTest, RefusesWrongArgumentsOnEveryRank)
{
    const auto cube = cube_of_loose_triangles();
    EXPECT_TRUE(throws_with<InvalidInput>(
        "vertices", [&] { signed_distance(cube.vertices.narrow(1, 0, 2), cube.faces, cube.vertices); }));
    EXPECT_TRUE(
        throws_with<InvalidInput>("faces", [&] { signed_distance(cube.vertices, cube.vertices, cube.vertices); }));
    EXPECT_TRUE(throws_with<InvalidInput>("queries", [&] { signed_distance(cube.vertices, cube.faces, cube.faces); }));
    EXPECT_TRUE(
        throws_with<InvalidInput>("vertex 36", [&] { signed_distance(cube.vertices, cube.faces + 1, cube.vertices); }));
    EXPECT_TRUE(throws_with<InvalidInput>(
        "no triangles", [&] { signed_distance(cube.vertices, cube.faces.narrow(0, 0, 0), cube.vertices); }));
    EXPECT_TRUE(throws_with<InvalidInput>("not finite",
                                          [&] { signed_distance(cube.vertices / 0., cube.faces, cube.vertices); }));
    EXPECT_TRUE(throws_with<InvalidInput>(
        "max_distance", [&] { signed_distance(cube.vertices, cube.faces, cube.vertices, {.max_distance = 0}); }));
    const auto drawn = at::rand({4, 3}, at::kDouble);
    run_ranks(3, [&](const auto& mesh) {
        const auto cut = [&](const at::Tensor& local) { return from_local(local, mesh, {Shard(0)}); };
        const auto good = cut(drawn), vertices = cut(cube.vertices.narrow(0, mesh->coordinate(0) * 12, 12)),
                   faces = cut(cube.faces.narrow(0, mesh->coordinate(0) * 4, 4));
        // Each wrong on one rank only.
        const bool is_here = mesh->coordinate(0) == 1;
        const auto spoiled = [&](const at::Tensor& local, double value) {
            auto copy = local.clone();
            if (is_here) copy.view({-1})[2] = value;
            return copy;
        };
        const auto refuses = [&](const char* text, const at::Tensor& v, const at::Tensor& f, const at::Tensor& q,
                                 const SurfaceDistanceOptions& options = {}) {
            EXPECT_TRUE(throws_with<InvalidInput>(text, [&] { signed_distance(v, f, q, options); }));
        };
        for (const double bad : {std::nan(""), HUGE_VAL, -1e19}) {
            refuses("a query has a coordinate that is not finite", cube.vertices, cube.faces, cut(spoiled(drawn, bad)));
            refuses("is not finite", cut(spoiled(local_of(vertices), bad)), faces, good);
            refuses("is not finite", cut(spoiled(local_of(vertices), bad)), cube.faces, good);
        }
        for (const double bad : {-1.0, 36.0}) {
            refuses("there are vertices 0 to 35", vertices, cut(spoiled(local_of(faces), bad)), good);
            refuses("vertex", cube.vertices, spoiled(cube.faces, bad), good);
        }
        refuses("the faces are a tensor of type Float", vertices, cut(local_of(faces).to(at::kFloat)), good);
        refuses("the queries are a tensor of type Long", vertices, faces, cut(drawn.to(at::kLong)));
        refuses("ranks pass different arguments", vertices, faces, good,
                {.sign = is_here ? SurfaceSign::WindingNumber : SurfaceSign::PseudoNormal});
        refuses("max_distance is -1", vertices, faces, good, {.max_distance = is_here ? -1.0 : 1.0});
        refuses("ranks pass different arguments", vertices, faces, good, {.max_distance = is_here ? 1.0 : 2.0});
        refuses("ranks pass different arguments", is_here ? vertices.detach().requires_grad_() : vertices, faces, good);
        EXPECT_FALSE(local_of(signed_distance(vertices, faces, good).distances)
                         .isnan()
                         .any()
                         .template item<bool>());  // and all can go on
    });
}

}  // namespace
}  // namespace meshard
