// SPDX-License-Identifier: Apache-2.0
#include "ops/fields/mesh_operators.h"
#include "partition/cut/metis_partitioner.h"
#include "partition/error.h"
#include "partition/ghosts/ghost_graph.h"
#include "partition/mesh/mesh_graph.h"
#include "sharding/exchange/row_routes.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/four_partitions.h"
#include "tests/support/hub_meshes.h"
#include "tests/support/run_ranks.h"
#include "tests/support/sample_meshes.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <random>

namespace meshard {
namespace {

/// Moves every point by up to `amount`, so that no face is plane and no line of centroids normal to its face; along z,
/// too, if asked.
Mesh shaken(Mesh mesh, double amount, bool along_z = true)
{
    std::mt19937_64 random(1);
    std::uniform_real_distribution<double> unit(-amount, amount);
    auto positions = mesh.points.to_doubles();
    for (std::size_t i = 0; i < positions.size(); ++i) {
        if (i % 3 < 2 || along_z) positions[i] += unit(random);
    }
    mesh.points = DataArray::from("Points", positions, 3);
    return mesh;
}

/// The unit cube in boxes that are hexahedra, polyhedra, two wedges, or six tetrahedra, by turns.
Mesh cube_of_all_solids(std::int32_t n)
{
    const Mesh boxes = polyhedral_cube(n), tets = tet_cube(n);
    Mesh mesh;
    mesh.points = boxes.points;
    const auto add = [&](std::uint8_t type, std::initializer_list<std::int32_t> points) {
        mesh.cells.push_row(std::vector<std::int32_t>(points));
        mesh.cell_types.push_back(type);
        mesh.face_streams.push_row({});
    };
    for (std::int32_t box = 0; box < boxes.num_cells(); ++box) {
        const auto p = boxes.cells.row(box);
        switch (box % 4) {
        case 0:
            add(12, {p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7]});
            break;
        case 1:
            mesh.cells.push_row(p);
            mesh.cell_types.push_back(42);
            mesh.face_streams.push_row(boxes.face_streams.row(box));
            break;
        case 2:
            add(13, {p[0], p[1], p[2], p[4], p[5], p[6]});
            add(13, {p[0], p[2], p[3], p[4], p[6], p[7]});
            break;
        default:
            for (std::int32_t t = 6 * box; t < 6 * box + 6; ++t) {
                const auto q = tets.cells.row(t);
                add(10, {q[0], q[1], q[2], q[3]});
            }
        }
    }
    mesh.validate();
    return mesh;
}

/// Unit squares in the plane, every `cut_every`-th one cut in two triangles; 0 for none.
Mesh plane_of_polygons(std::int32_t n, std::int32_t cut_every = 2)
{
    std::vector<double> positions;
    Mesh mesh;
    mesh.kind = MeshKind::Surface;
    for (std::int32_t j = 0; j <= n; ++j) {
        for (std::int32_t i = 0; i <= n; ++i)
            positions.insert(positions.end(), {static_cast<double>(i), static_cast<double>(j), 0.5});
    }
    for (std::int32_t j = 0; j < n; ++j) {
        for (std::int32_t i = 0; i < n; ++i) {
            const std::int32_t a = i + j * (n + 1), b = a + 1, c = b + n + 1, d = c - 1;
            const bool is_cut = cut_every > 0 && (i + j) % cut_every == cut_every - 1;
            mesh.cells.push_row(is_cut ? std::vector{a, b, c} : std::vector{a, b, c, d});
            mesh.cell_types.push_back(is_cut ? 5 : 9);
            if (!is_cut) continue;
            mesh.cells.push_row(std::vector{a, c, d});
            mesh.cell_types.push_back(5);
        }
    }
    mesh.points = DataArray::from("Points", positions, 3);
    return mesh;
}

at::Tensor positions_of(const Mesh& mesh)
{
    const auto values = mesh.points.to_doubles();
    return at::tensor(values, at::kDouble).view({-1, 3});
}

const at::Tensor& slopes()
{
    static const at::Tensor slopes =
        at::tensor({1.5, -2.0, 0.25, 0.5, 1.0, -3.0}, at::kDouble).view({2, 3});  // of two fields
    return slopes;
}

at::Tensor linear_fields(const at::Tensor& positions)
{
    return positions.mm(slopes().t()) + 1e3;
}

at::Tensor draw(std::uint64_t seed, std::vector<std::int64_t> shape)
{
    auto values = at::empty(shape, at::kDouble);
    std::mt19937_64 random(seed);
    for (std::int64_t i = 0; i < values.numel(); ++i)
        values.view({-1})[i] = std::uniform_real_distribution<double>(-1, 1)(random);
    return values;
}

/// The divergence of a vector field: the trace of its gradient, (cells, 3, 3).
at::Tensor trace_of(const at::Tensor& gradient)
{
    return gradient.diagonal(0, 1, 2).sum(1);
}

TEST(MeshOperators, GradientsOfLinearFieldsAreExact)
{
    struct Case {
        const char* name;
        Mesh mesh;
        GradientNeighbors neighbors;
    };
    const Case cases[] = {{"hexahedra", shaken(cube(4), 0.04), GradientNeighbors::Facet},
                          {"polyhedra", shaken(polyhedral_cube(3), 0.05), GradientNeighbors::Facet},
                          {"tetrahedra", shaken(tet_cube(3), 0.05), GradientNeighbors::Vertex},
                          {"all solids", shaken(cube_of_all_solids(3), 0.05), GradientNeighbors::Vertex}};
    for (const auto& [name, mesh, neighbors] : cases) {
        SCOPED_TRACE(name);
        const MeshGeometry geometry(mesh);
        const auto expected = slopes().unsqueeze(0).expand({mesh.num_cells(), 2, 3});

        const auto fitted = least_squares_gradient(geometry, neighbors)(linear_fields(geometry.centroids()));
        const auto integrated = green_gauss_gradient(geometry)(linear_fields(positions_of(mesh)));

        EXPECT_TRUE(tensors_near(fitted, expected, 1e-10));
        EXPECT_TRUE(tensors_near(integrated, expected, 1e-10));
        const auto flow =
            positions_of(mesh).mm(at::tensor({2.0, 1.0, 0.0, 0.0, 3.0, 5.0, 7.0, 0.0, -1.0}, at::kDouble).view({3, 3}));
        EXPECT_TRUE(tensors_near(trace_of(green_gauss_gradient(geometry)(flow)),
                                 at::full({mesh.num_cells()}, 2.0 + 3 - 1, at::kDouble), 1e-10));
    }
}

TEST(MeshOperators, GradientsOnASurfaceLieInIt)
{
    const MeshGeometry plane(shaken(plane_of_polygons(4), 0.2, false));
    const auto expected =
        slopes().mul(at::tensor({1.0, 1.0, 0.0}, at::kDouble)).unsqueeze(0).expand({plane.mesh().num_cells(), 2, 3});
    EXPECT_TRUE(tensors_near(least_squares_gradient(plane, GradientNeighbors::Vertex)(linear_fields(plane.centroids())),
                             expected, 1e-10));
    EXPECT_TRUE(tensors_near(green_gauss_gradient(plane)(linear_fields(positions_of(plane.mesh()))), expected, 1e-10));

    const MeshGeometry ball(sphere(8));
    const auto normals = ball.normals().unsqueeze(1);
    const auto tangential = slopes().unsqueeze(0) - (slopes().unsqueeze(0) * normals).sum(2, true) * normals;
    EXPECT_TRUE(tensors_near(green_gauss_gradient(ball)(linear_fields(positions_of(ball.mesh()))), tangential, 1e-9));
}

TEST(MeshOperators, FluxesBetweenCellsCancel)
{
    const Mesh mesh = shaken(cube(4), 0.04);
    const MeshGeometry geometry(mesh);
    // Zero at the outside, anything inside.
    const auto inside = positions_of(cube(4)).sub(0.5).abs().amax(1, true).lt(0.45).to(at::kDouble);
    const auto flow = draw(3, {mesh.num_points(), 3}) * inside;

    const auto sources = trace_of(green_gauss_gradient(geometry)(flow));

    EXPECT_GT(sources.abs().max().item<double>(), 1);
    EXPECT_NEAR((sources * geometry.sizes()).sum().item<double>(), 0, 1e-14);
    EXPECT_NEAR((laplacian(geometry)(draw(4, {mesh.num_cells()})) * geometry.sizes()).sum().item<double>(), 0, 1e-13);
}

TEST(MeshOperators, LaplacianOfASquareIsTwo)
{
    const MeshGeometry geometry(cube(5));
    const auto x = geometry.centroids();
    const auto is_inner = x.sub(0.5).abs().amax(1).lt(0.35);

    const auto found = laplacian(geometry)(x.square());

    EXPECT_TRUE(tensors_near(found.masked_select(is_inner.unsqueeze(1)), at::full({27 * 3}, 2.0, at::kDouble), 1e-11));
}

TEST(MeshOperators, MeansAreThoseOfALoop)
{
    const Mesh mesh = cube_of_all_solids(2);
    const MeshGeometry geometry(mesh);
    const auto at_cells = draw(6, {mesh.num_cells(), 2});
    auto of_cells = at::zeros({mesh.num_points(), 2}, at::kDouble),
         counts = at::zeros({mesh.num_points(), 1}, at::kDouble);
    for (std::int64_t i = 0; i < mesh.num_cells(); ++i) {
        for (const auto point : mesh.cells.row(i)) {
            of_cells[point] += at_cells[i];
            counts[point] += 1;
        }
    }

    EXPECT_TRUE(tensors_near(cells_to_points(geometry)(at_cells), of_cells / counts, 1e-15));
}

TEST(MeshOperators, NormalsAtThePointsOfASphereAreItsRadii)
{
    const Mesh mesh = sphere(6);
    EXPECT_LT((point_normals(MeshGeometry(mesh)) - positions_of(mesh)).abs().max().item<double>(), 0.2);
}

struct MeshCut {
    int ranks;
    std::string kind;
    Partition partition;
};

std::vector<MeshCut> cuts_of(const Mesh& mesh)
{
    std::vector<MeshCut> cuts;
    for (const int ranks : {1, 2, 3, 4, 5, 7, 8}) {
        for (auto& [kind, partition] : four_partitions(mesh, ranks)) {
            if (ranks > 1 || kind == "metis") cuts.push_back({ranks, kind, std::move(partition)});
        }
    }
    return cuts;
}

/// All operators on one cell field (cells, 2) and one point field (points, 2).
std::vector<at::Tensor> all_results(const MeshGeometry& geometry, GradientNeighbors neighbors, const at::Tensor& cells,
                                    const at::Tensor& points)
{
    const auto gradient = least_squares_gradient(geometry, neighbors), gauss = green_gauss_gradient(geometry);
    return {gradient(cells), gauss(points), laplacian(geometry)(cells), cells_to_points(geometry)(cells),
            cells_to_points(geometry)(gradient(cells))};
}

/// Acceptance A23.
TEST(MeshOperators, OnCutMeshesEqualThoseOfTheWhole)
{
    struct Case {
        const char* name;
        Mesh mesh;
        GradientNeighbors neighbors;
    };
    const Case cases[] = {{"hexahedra", shaken(cube(3), 0.04), GradientNeighbors::Facet},
                          {"tetrahedra", shaken(tet_cube(2), 0.05), GradientNeighbors::Vertex},
                          {"all solids", shaken(cube_of_all_solids(3), 0.04), GradientNeighbors::Vertex},
                          {"solids and a wall", mixed_cells(), GradientNeighbors::Facet},
                          {"quadrilaterals", shaken(plane_of_polygons(4, 0), 0.2), GradientNeighbors::Vertex},
                          {"triangles", shaken(plane_of_polygons(4, 1), 0.2), GradientNeighbors::Facet},
                          {"triangles and quadrilaterals", shaken(plane_of_polygons(5), 0.2), GradientNeighbors::Facet},
                          {"closed surface", sphere(4), GradientNeighbors::Vertex}};
    for (const auto& [name, mesh, neighbors] : cases) {
        const auto at_cells = draw(10, {mesh.num_cells(), 2}), at_points = draw(11, {mesh.num_points(), 2});
        const MeshGeometry whole(mesh);
        auto c0 = at_cells.clone().requires_grad_(), p0 = at_points.clone().requires_grad_();
        const auto expected = all_results(whole, neighbors, c0, p0);
        at::Tensor loss = at::zeros({}, at::kDouble);
        for (const auto& result : expected) loss = loss + result.square().sum();
        loss.backward();
        const auto rule = neighbors == GradientNeighbors::Facet ? GhostNeighbors::Face : GhostNeighbors::Vertex;
        const auto graph = ghost_graph(mesh, {.neighbors = rule});
        for (const auto& [ranks, kind, partition] : cuts_of(mesh)) {
            SCOPED_TRACE(std::string(name) + " on " + std::to_string(ranks) + " ranks, " + kind);
            run_ranks(ranks, [&, &partition = partition](const auto& device_mesh) {
                const MeshGeometry part(
                    extract_subdomain(mesh, graph, partition, static_cast<std::int32_t>(device_mesh->coordinate(0)), 1),
                    device_mesh);
                const auto own = [](const at::Tensor& all, const IndexMap& ids) {
                    return all.index_select(
                        0, at::tensor(std::vector<std::int64_t>(ids.owned().begin(), ids.owned().end()), at::kLong));
                };
                auto c = own(at_cells, part.cell_ids()).requires_grad_(),
                     p = own(at_points, part.point_ids()).requires_grad_();

                const auto found = all_results(part, neighbors, part.cells().field(c), part.points().field(p));
                at::Tensor share = at::zeros({}, at::kDouble);
                for (const auto& result : found) share = share + to_local(result).square().sum();
                share.backward();

                for (std::size_t i = 0; i < found.size(); ++i) {
                    const auto& ids = i < 3 ? part.cell_ids() : part.point_ids();
                    EXPECT_TRUE(tensors_near(local_of(found[i].detach()), own(expected[i].detach(), ids), 1e-12))
                        << "operator " << i;
                }
                EXPECT_TRUE(tensors_near(c.grad(), own(c0.grad(), part.cell_ids()), 1e-11));
                EXPECT_TRUE(tensors_near(p.grad(), own(p0.grad(), part.point_ids()), 1e-11));
                EXPECT_TRUE(tensors_near(local_of(part.normals()), own(whole.normals(), part.cell_ids()), 1e-15));
                EXPECT_TRUE(tensors_near(local_of(part.sizes()), own(whole.sizes(), part.cell_ids()), 1e-15));
                EXPECT_TRUE(tensors_near(local_of(part.centroids()), own(whole.centroids(), part.cell_ids()), 1e-15));
                EXPECT_TRUE(
                    tensors_near(local_of(point_normals(part)), own(point_normals(whole), part.point_ids()), 1e-13));
            });
        }
    }
}

// As pairs of cells around the centre, the neighbours take 100 GB.
TEST(MeshOperators, FitGradientsWhereAHundredThousandCellsMeet)
{
    Mesh mesh = triangle_fan(100'000);
    std::vector<std::int32_t> order(mesh.num_cells());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(1));
    Csr shuffled;
    for (const auto cell : order) shuffled.push_row(mesh.cells.row(cell));
    for (auto* cells : {&mesh.cells, &shuffled}) {
        mesh.cells = *cells;
        const MeshGeometry geometry(mesh);
        const auto slope = at::tensor({3.0, 2.0, 0.0}, at::kDouble);

        const auto gradient =
            least_squares_gradient(geometry, GradientNeighbors::Vertex)(geometry.centroids().matmul(slope));

        EXPECT_LT((gradient - slope).abs().max().item<double>(), 1e-6);
    }
}

TEST(MeshOperators, OnCutFansEqualThoseOfTheWhole)
{
    const Mesh mesh = triangle_fan(900);
    const auto graph = ghost_graph(mesh, {.neighbors = GhostNeighbors::Vertex});
    const MeshGeometry whole(mesh);
    const auto field = whole.centroids().select(1, 0).square();
    const auto expected = least_squares_gradient(whole, GradientNeighbors::Vertex)(field);
    for (const int ranks : {2, 3})
        for (const auto& [kind, partition] : four_partitions(mesh, ranks)) {
            SCOPED_TRACE(kind);
            run_ranks(ranks, [&, &partition = partition](const auto& device_mesh) {
                const MeshGeometry part(
                    extract_subdomain(mesh, graph, partition, static_cast<std::int32_t>(device_mesh->coordinate(0)), 1),
                    device_mesh);
                const auto own = [&](const at::Tensor& all) {
                    const auto ids = part.cell_ids().owned();
                    return all.index_select(0,
                                            at::tensor(std::vector<std::int64_t>(ids.begin(), ids.end()), at::kLong));
                };

                const auto found =
                    least_squares_gradient(part, GradientNeighbors::Vertex)(part.cells().field(own(field)));

                EXPECT_TRUE(tensors_near(local_of(found), own(expected), 1e-12));
            });
        }
}

TEST(MeshOperators, RefuseOnSeveralRanksWhatTheOrderOfAllCellsDecides)
{
    const Mesh mesh = triangles_at_an_edge(200);
    const auto graph = mesh_graph(mesh);
    const auto partition = partition_with_metis(graph, {.num_parts = 2});
    run_ranks(2, [&](const auto& device_mesh) {
        const MeshGeometry part(
            extract_subdomain(mesh, graph, partition, static_cast<std::int32_t>(device_mesh->coordinate(0)), 1),
            device_mesh);
        for (const auto& make :
             {std::function([&] { laplacian(part); }), std::function([&] { least_squares_gradient(part); })})
            EXPECT_TRUE(throws_with<InvalidInput>("has a facet that may belong to more than 64 cells", make));
    });
    EXPECT_NO_THROW(laplacian(MeshGeometry(mesh)));
}

TEST(MeshOperators, SendGhostsOnce)
{
    const Mesh mesh = cube(4);
    const auto graph = ghost_graph(mesh, {});
    const auto partition = partition_with_metis(graph, {.num_parts = 3});
    run_ranks(3, [&](const auto& device_mesh) {
        const MeshGeometry part(
            extract_subdomain(mesh, graph, partition, static_cast<std::int32_t>(device_mesh->coordinate(0)), 1),
            device_mesh);
        const auto gradient = least_squares_gradient(part);
        const auto field = part.cells().field(at::ones({part.cells().num_owned, 2}, at::kDouble));
        device_mesh->counter().reset();

        gradient(field);

        EXPECT_EQ(device_mesh->counter().num_calls(), 1);
        EXPECT_EQ(device_mesh->counter().total_bytes(), part.cell_ids().num_ghosts() * 2 * 8);
    });
}

TEST(MeshOperators, RefuseFieldsOfAnotherMesh)
{
    const MeshGeometry whole(cube(2));
    EXPECT_TRUE(throws_with<InvalidInput>("laplacian: the field has 9 rows",
                                          [&] { laplacian(whole)(at::ones({9}, at::kDouble)); }));
    const Mesh mesh = tet_cube(3);
    const auto graph = ghost_graph(mesh, {});
    const auto partition = partition_with_metis(graph, {.num_parts = 2});
    run_ranks(2, [&](const auto& device_mesh) {
        const auto rank = static_cast<std::int32_t>(device_mesh->coordinate(0));
        const auto part = [&](std::int32_t which, std::int32_t layers) {
            return extract_subdomain(mesh, graph, partition, which, layers);
        };
        EXPECT_THROW(MeshGeometry(part(rank, 0), device_mesh), InvalidInput);
        EXPECT_THROW(MeshGeometry(part(0, 1), device_mesh), InvalidInput);  // wrong on rank 1 only
        const MeshGeometry geometry(part(rank, 1), device_mesh);
        EXPECT_THROW(least_squares_gradient(geometry, GradientNeighbors::Vertex), InvalidInput);
        EXPECT_THROW(laplacian(geometry)(at::ones({mesh.num_cells()}, at::kDouble)), InvalidInput);
    });
}

}  // namespace
}  // namespace meshard
