// SPDX-License-Identifier: Apache-2.0
#include "partition/error.h"
#include "partition/mesh/cell_type.h"
#include "partition/mesh/mesh_graph.h"
#include "partition/mesh/neighbor_graph.h"
#include "tests/support/expect_error.h"
#include "tests/support/hub_meshes.h"
#include "tests/support/sample_meshes.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace meshard {
namespace {

struct Cell {
    std::uint8_t type;
    std::vector<std::int32_t> points;
};

// A mesh of these cells on as many points as they name.
Mesh mesh_of(const std::vector<Cell>& cells)
{
    Mesh mesh;
    std::int32_t num_points = 0;
    for (const auto& [type, points] : cells) {
        mesh.cells.push_row(points);
        mesh.cell_types.push_back(type);
        for (const auto point : points) num_points = std::max(num_points, point + 1);
    }
    mesh.points = DataArray("Points", ScalarType::Float32, num_points, 3);
    return mesh;
}

std::vector<std::int32_t> neighbors(const Csr& graph, std::int64_t cell)
{
    return {graph.row(cell).begin(), graph.row(cell).end()};
}

using Row = std::vector<std::int32_t>;

// The contract word for word: sets of points, every pair of cells that has one in common. Fixed solids by cell_type.h's
// faces.
Csr reference_graph(const Mesh& mesh)
{
    std::map<std::set<std::int32_t>, std::set<std::int32_t>> cells_at;
    for (std::int32_t cell = 0; cell < mesh.num_cells(); ++cell) {
        const auto p = mesh.cells.row(cell);
        const auto& type = cell_type_of(mesh.cell_types[cell]);
        const auto n = p.size();
        std::vector<std::set<std::int32_t>> facets;
        if (type.shape == CellShape::Points)
            for (const auto point : p) facets.push_back({point});
        if (type.dimension == 1) facets = {{p.front()}, {p.back()}};
        if (type.dimension == 1)
            for (std::size_t i = 0; i + 1 < n; ++i) facets.push_back({p[i], p[i + 1]});
        if (type.shape == CellShape::Strip)
            for (std::size_t i = 0; i + 2 < n; ++i)
                facets.insert(facets.end(),
                              {{p[i], p[i + 1]}, {p[i + 1], p[i + 2]}, {p[i], p[i + 2]}, {p[i], p[i + 1], p[i + 2]}});
        else if (type.dimension == 2) {
            for (std::size_t i = 0; i < n; ++i) facets.push_back({p[i], p[(i + 1) % n]});
            facets.emplace_back(p.begin(), p.end());
        }
        for (const auto& face : solid_faces(type.shape)) {
            facets.emplace_back();
            for (const auto corner : face) facets.back().insert(p[corner]);
        }
        if (type.shape == CellShape::Polyhedron) {
            const auto stream = mesh.face_streams.row(cell);
            for (std::size_t at = 1; at < stream.size(); at += 1 + stream[at])
                facets.emplace_back(stream.begin() + at + 1, stream.begin() + at + 1 + stream[at]);
        }
        for (const auto& facet : facets) cells_at[facet].insert(cell);
    }
    std::vector<std::set<std::int32_t>> rows(mesh.num_cells());
    for (const auto& [facet, cells] : cells_at)
        for (const auto a : cells)
            for (const auto b : cells)
                if (a != b) rows[a].insert(b);
    Csr graph;
    for (const auto& row : rows) graph.push_row(Row(row.begin(), row.end()));
    return graph;
}

TEST(CellGraph, FollowsItsContractOnEveryMesh)
{
    for (const auto& [name, mesh] : sample_meshes()) {
        const auto graph = cell_graph(mesh);
        EXPECT_NO_THROW(graph.validate(mesh.num_cells())) << name;
        EXPECT_EQ(graph, reference_graph(mesh)) << name;
    }
}

TEST(CellGraph, IsTheSameOnAnyNumberOfThreads)
{
    for (const auto& [name, mesh] : sample_meshes())
        for (const std::int32_t num_threads : {1, 2, 3, 7})
            EXPECT_EQ(cell_graph_on_threads(mesh, num_threads), cell_graph(mesh)) << name << ", " << num_threads;
}

TEST(CellGraph, DoesNotDependOnTheOrderOfPointsAndCells)
{
    std::mt19937 engine(2);
    const auto mesh = tet_cube(3);
    std::vector<std::int32_t> cells(mesh.num_cells()), points(mesh.num_points());
    for (std::size_t i = 0; i < cells.size(); ++i) cells[i] = static_cast<std::int32_t>(i);
    for (std::size_t i = 0; i < points.size(); ++i) points[i] = static_cast<std::int32_t>(i);
    std::shuffle(cells.begin(), cells.end(), engine);
    std::shuffle(points.begin(), points.end(), engine);
    const auto graph = cell_graph(mesh);

    const auto shuffled = cell_graph(extract_mesh(mesh, cells, points));

    for (std::size_t i = 0; i < cells.size(); ++i) {
        Row sources;
        for (const auto j : shuffled.row(static_cast<std::int64_t>(i))) sources.push_back(cells[j]);
        std::ranges::sort(sources);
        EXPECT_EQ(sources, neighbors(graph, cells[i]));
    }
}

TEST(CellGraph, OfACubeIsTheGrid)
{
    constexpr std::int32_t n = 4;
    Csr expected;
    for (std::int32_t k = 0; k < n; ++k)
        for (std::int32_t j = 0; j < n; ++j)
            for (std::int32_t i = 0; i < n; ++i) {
                const auto c = i + n * j + n * n * k;
                Row row;
                if (k > 0) row.push_back(c - n * n);
                if (j > 0) row.push_back(c - n);
                if (i > 0) row.push_back(c - 1);
                if (i + 1 < n) row.push_back(c + 1);
                if (j + 1 < n) row.push_back(c + n);
                if (k + 1 < n) row.push_back(c + n * n);
                expected.push_row(row);
            }

    EXPECT_EQ(cell_graph(cube(n)), expected);
    EXPECT_EQ(cell_graph(polyhedral_cube(n)), expected);
}

TEST(CellGraph, OfAClosedTriangleSurfaceHasThreeNeighborsACell)
{
    const auto graph = cell_graph(sphere(6));

    for (std::int64_t i = 0; i < graph.num_rows(); ++i) EXPECT_EQ(graph.row(i).size(), 3u);
}

TEST(CellGraph, JoinsSolidsOfDifferentTypesAndTheirWall)
{
    const auto graph = cell_graph(mixed_cells());

    EXPECT_EQ(neighbors(graph, 0), (Row{1, 3, 4}));
    EXPECT_EQ(neighbors(graph, 1), (Row{0, 2}));
    EXPECT_EQ(neighbors(graph, 2), (Row{1}));
    EXPECT_EQ(neighbors(graph, 3), (Row{0}));
    EXPECT_EQ(neighbors(graph, 4), (Row{0, 5}));
    EXPECT_EQ(neighbors(graph, 5), (Row{4}));
}

TEST(CellGraph, KnowsVoxelsAndPixelsOrder)
{
    // Voxel 0 under voxel 1; a pixel and a quad on voxel 0's face x = 0, a quad across its diagonal, a pixel on 1's
    // top.
    const auto mesh = mesh_of({{11, {0, 1, 2, 3, 4, 5, 6, 7}},
                               {11, {4, 5, 6, 7, 8, 9, 10, 11}},
                               {8, {0, 2, 4, 6}},
                               {9, {0, 2, 6, 4}},
                               {9, {0, 3, 7, 4}},
                               {8, {8, 9, 10, 11}}});
    const auto graph = cell_graph(mesh);

    EXPECT_EQ(neighbors(graph, 0), (Row{1, 2, 3}));
    EXPECT_EQ(neighbors(graph, 1), (Row{0, 5}));
    EXPECT_EQ(neighbors(graph, 2), (Row{0, 3, 4}));  // and edge 0 4 of the quad across
    EXPECT_EQ(neighbors(graph, 5), (Row{1}));
}

TEST(CellGraph, KnowsPrisms)
{
    const auto mesh = mesh_of({{15, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}},
                               {15, {5, 6, 7, 8, 9, 10, 11, 12, 13, 14}},
                               {12, {0, 1, 20, 21, 5, 6, 22, 23}},
                               {16, {20, 21, 30, 31, 32, 33, 22, 23, 34, 35, 36, 37}},
                               {7, {30, 31, 32, 33, 20, 21}}});
    const auto graph = cell_graph(mesh);

    EXPECT_EQ(neighbors(graph, 0), (Row{1, 2}));
    EXPECT_EQ(neighbors(graph, 2), (Row{0, 3}));
    EXPECT_EQ(neighbors(graph, 3), (Row{2, 4}));
}

TEST(CellGraph, SeesHigherOrderCellsByTheirCorners)
{
    // A quadratic tetra, a linear one and a Lagrange one on its faces, a quadratic triangle on the bottom; a quadratic
    // quad and edge.
    const auto mesh = mesh_of({{24, {0, 1, 2, 3, 10, 11, 12, 13, 14, 15}},
                               {10, {0, 1, 3, 4}},
                               {71, {1, 2, 3, 5, 20, 21, 22, 23, 24, 25}},
                               {22, {0, 1, 2, 10, 11, 12}},
                               {23, {0, 1, 30, 31, 10, 32, 33, 34}},
                               {21, {30, 31, 33}},
                               {36, {31, 30, 40, 33, 41, 42}}});
    const auto graph = cell_graph(mesh);

    EXPECT_EQ(neighbors(graph, 0), (Row{1, 2, 3}));
    EXPECT_EQ(neighbors(graph, 3), (Row{0, 4}));
    EXPECT_EQ(neighbors(graph, 4), (Row{3, 5, 6}));
    EXPECT_EQ(neighbors(graph, 5), (Row{4, 6}));
}

TEST(CellGraph, JoinsLinesAtTheirEndsAndVerticesAtTheirPoints)
{
    const auto mesh =
        mesh_of({{3, {0, 1}}, {4, {1, 2, 3}}, {3, {2, 4}}, {1, {3}}, {2, {4, 9}}, {1, {9}}, {68, {4, 0, 7}}});
    const auto graph = cell_graph(mesh);

    EXPECT_EQ(neighbors(graph, 0), (Row{1, 6}));
    EXPECT_EQ(neighbors(graph, 1), (Row{0, 3}));  // point 2 is inside the poly-line
    EXPECT_EQ(neighbors(graph, 2), (Row{4, 6}));
    EXPECT_EQ(neighbors(graph, 4), (Row{2, 5, 6}));
}

TEST(CellGraph, JoinsEveryPairAtAFacetOfManyCells)
{
    const auto graph =
        cell_graph(mesh_of({{5, {0, 1, 2}}, {5, {1, 0, 3}}, {5, {0, 1, 4}}, {5, {4, 1, 0}}, {3, {1, 0}}}));

    for (std::int32_t cell = 0; cell < 5; ++cell) EXPECT_EQ(graph.row(cell).size(), 4u) << cell;
}

TEST(CellGraph, FindsFacetsThatNoManifoldHas)
{
    const auto crowded = [](const Mesh& mesh) {
        FacetCrowds found{7, 7};
        cell_graph(mesh, &found);
        for (const std::int32_t num_threads : {2, 3}) {
            FacetCrowds on_threads{7, 7};
            cell_graph_on_threads(mesh, num_threads, &on_threads);
            EXPECT_EQ(on_threads, found) << num_threads;
        }
        return found.first_cell;
    };
    EXPECT_EQ(crowded(mesh_of({{10, {6, 7, 8, 9}}, {10, {0, 1, 2, 3}}, {10, {0, 1, 2, 4}}, {10, {0, 1, 2, 5}}})), 1);
    EXPECT_EQ(crowded(mesh_of({{10, {0, 1, 2, 3}}, {10, {0, 1, 2, 4}}, {5, {0, 1, 2}}})), -1);  // a wall between two
    EXPECT_EQ(crowded(mesh_of({{5, {0, 1, 2}}, {5, {1, 0, 3}}, {5, {0, 1, 4}}, {5, {0, 1, 5}}, {5, {2, 1, 7}}})), 0);
    EXPECT_EQ(crowded(mesh_of({{3, {0, 1}}, {3, {0, 2}}, {3, {0, 3}}})), -1);
    for (const Mesh& mesh : {cube(3), tet_cube(2), polyhedral_cube(2), sphere(4), mixed_cells()})
        EXPECT_EQ(crowded(mesh), -1);
}

// Neighbours at one facet with `num_cells` cells, by the definition.
Row neighbors_in_crowd(std::int32_t cell, std::int32_t num_cells)
{
    Row row;
    for (std::int32_t other = 0; other < num_cells; ++other)
        if (other != cell && (std::max(cell, other) < most_mutual_cells || std::abs(cell - other) == 1))
            row.push_back(other);
    return row;
}

TEST(CellGraph, GrowsWithTheCellsAtAFacetAndNotWithTheirSquare)
{
    for (const auto make : {star_of_lines, triangles_at_an_edge, tetrahedra_at_a_face})
        for (const std::int32_t num_cells : {3, most_mutual_cells, most_mutual_cells + 1, 500}) {
            const Mesh mesh = make(num_cells);
            SCOPED_TRACE(cell_type_name(mesh.cell_types[0]) + ", " + std::to_string(num_cells));
            FacetCrowds crowds;

            const auto graph = cell_graph(mesh, &crowds);

            for (std::int32_t cell = 0; cell < num_cells; ++cell)
                ASSERT_EQ(neighbors(graph, cell), neighbors_in_crowd(cell, num_cells)) << cell;
            EXPECT_EQ(crowds.most_cells, num_cells);
            for (const std::int32_t num_threads : {2, 5})
                EXPECT_EQ(cell_graph_on_threads(mesh, num_threads), graph) << num_threads;
        }
    const auto graph = cell_graph(star_of_lines(200'000));
    EXPECT_LT(graph.num_entries(), 3 * 200'000);
}

TEST(CellGraph, TakesFacesOfEqualPointsAsOneHoweverManyPoints)
{
    Mesh mesh = mesh_of(
        {{42, {0, 1, 2, 3, 4, 5, 6}}, {42, {0, 1, 2, 3, 4, 5, 7}}, {42, {0, 1, 2, 3, 4, 8}}, {7, {5, 4, 3, 2, 1, 0}}});
    mesh.face_streams = {};
    mesh.face_streams.push_row(Row{2, 6, 0, 1, 2, 3, 4, 5, 3, 0, 1, 6});
    mesh.face_streams.push_row(Row{2, 6, 3, 2, 1, 0, 5, 4, 3, 0, 1, 7});
    mesh.face_streams.push_row(Row{2, 5, 0, 1, 2, 3, 4, 3, 0, 1, 8});
    mesh.face_streams.push_row({});
    const auto graph = cell_graph(mesh);

    EXPECT_EQ(neighbors(graph, 0), (Row{1, 3}));
    EXPECT_EQ(neighbors(graph, 1), (Row{0, 3}));
    EXPECT_TRUE(neighbors(graph, 2).empty());
}

TEST(CellGraph, SurvivesDegenerateCells)
{
    // A hexahedron collapsed to a wedge and its true neighbour; faces collapsed to the edge 0 4 join nothing.
    const auto collapsed = mesh_of({{12, {0, 1, 2, 0, 4, 5, 6, 4}},
                                    {13, {0, 1, 2, 4, 5, 6}},
                                    {12, {0, 8, 9, 0, 4, 10, 11, 4}},
                                    {10, {0, 0, 0, 0}},
                                    {5, {0, 0, 4}},
                                    {7, {}},
                                    {7, {3}},
                                    {0, {}},
                                    {4, {}},
                                    {6, {0, 4}},
                                    {9, {0, 1, 0, 1}}});
    const auto graph = cell_graph(collapsed);

    EXPECT_EQ(neighbors(graph, 0), (Row{1}));
    EXPECT_TRUE(neighbors(graph, 2).empty());
    for (const auto cell : {3, 4, 5, 6, 7, 8, 9}) EXPECT_TRUE(neighbors(graph, cell).empty()) << cell;
    EXPECT_TRUE(neighbors(graph, 10).empty());
}

TEST(CellGraph, DoesNotListACellThatHasAFacetTwice)
{
    const auto graph = cell_graph(mesh_of({{6, {0, 1, 2, 0, 1}}, {5, {0, 1, 3}}}));

    EXPECT_EQ(neighbors(graph, 0), (Row{1}));
    EXPECT_EQ(neighbors(graph, 1), (Row{0}));
}

TEST(CellGraph, FindsTheFacetsOfConvexPointSets)
{
    // Two convex point sets in any order of points, a unit cube and a pyramid on top, beside a hexahedron.
    Mesh mesh = mesh_of(
        {{41, {6, 0, 3, 5, 1, 7, 2, 4}}, {41, {8, 4, 6, 5, 7}}, {12, {1, 9, 10, 2, 5, 11, 12, 6}}, {5, {4, 5, 8}}});
    mesh.points =
        DataArray::from("Points", std::vector<double>{0, 0, 0, 1, 0,  0,  1, 1, 0, 0, 1, 0, 0, 0, 1, 1, 0, 1, 1, 1,
                                                      1, 0, 1, 1, .5, .5, 2, 2, 0, 0, 2, 1, 0, 2, 0, 1, 2, 1, 1},
                        3);
    const auto graph = cell_graph(mesh);

    EXPECT_EQ(neighbors(graph, 0), (Row{1, 2}));
    EXPECT_EQ(neighbors(graph, 1), (Row{0, 3}));
}

TEST(CellGraph, RefusesCellsItCannotKnow)
{
    EXPECT_TRUE(throws_with<InvalidInput>("cell 1 (parametric_hex_region) is of a type whose faces are not known",
                                          [] { cell_graph(mesh_of({{5, {0, 1, 2}}, {56, {0, 1}}})); }));
    EXPECT_TRUE(throws_with<InvalidInput>("cell 0 (cell type 200)", [] { cell_graph(mesh_of({{200, {0}}})); }));
    EXPECT_TRUE(throws_with<InvalidInput>("cell 0 (hexahedron) has 4 points, expected at least 8",
                                          [] { cell_graph(mesh_of({{12, {0, 1, 2, 3}}})); }));
    EXPECT_TRUE(throws_with<InvalidInput>("has no face stream", [] { cell_graph(mesh_of({{42, {0, 1, 2, 3}}})); }));
    EXPECT_TRUE(throws_with<InvalidInput>("ends within a face", [] {
        auto mesh = mesh_of({{42, {0, 1, 2, 3}}});
        mesh.face_streams.push_row(Row{1, 4, 0, 1, 2});
        cell_graph(mesh);
    }));
}

TEST(SolidFaces, CloseUp)
{
    const std::pair<CellShape, std::size_t> solids[] = {
        {CellShape::Tetra, 4},          {CellShape::Voxel, 8},   {CellShape::Hexahedron, 8},
        {CellShape::Wedge, 6},          {CellShape::Pyramid, 5}, {CellShape::PentagonalPrism, 10},
        {CellShape::HexagonalPrism, 12}};
    for (const auto& [shape, num_corners] : solids) {
        std::map<std::set<int>, int> faces_at_edge;
        std::set<int> corners;
        const auto faces = solid_faces(shape);
        for (const auto& face : faces)
            for (std::size_t i = 0; i < face.size(); ++i) {
                ++faces_at_edge[{face[i], face[(i + 1) % face.size()]}];
                corners.insert(face[i]);
            }
        EXPECT_EQ(corners.size(), num_corners);
        EXPECT_EQ(num_corners + faces.size(), faces_at_edge.size() + 2);  // Euler
        for (const auto& [edge, count] : faces_at_edge) EXPECT_EQ(count, 2);
    }
}

TEST(MeshGraph, OfACloudIsItsNearestNeighborGraph)
{
    const auto cloud = random_cloud(30, 4);

    EXPECT_EQ(mesh_graph(cloud), nearest_neighbor_graph(cloud.points, 8));
    EXPECT_EQ(mesh_graph(random_cloud(1, 4)).num_entries(), 0);
    EXPECT_EQ(mesh_graph(empty_mesh()).num_rows(), 0);
    EXPECT_EQ(mesh_graph(strip(3)), cell_graph(strip(3)));
}

TEST(MeshGraph, OfVertexCellsFollowsTheirPoints)
{
    auto mesh = vertex_cells(12);
    std::ranges::reverse(mesh.cells.indices);
    const auto of_points = nearest_neighbor_graph(mesh.points, 8);

    const auto graph = mesh_graph(mesh);

    for (std::int32_t cell = 0; cell < 12; ++cell) {
        Row points;
        for (const auto neighbor : graph.row(cell)) points.push_back(11 - neighbor);
        std::ranges::sort(points);
        EXPECT_EQ(points, neighbors(of_points, 11 - cell));
    }
}

}  // namespace
}  // namespace meshard
