// SPDX-License-Identifier: Apache-2.0
// Every cell type that VTK has a class for: kept as it is on the way through files, and cut by its corners. VTK says
// which these are.
#include "io/mesh_io.h"
#include "partition/mesh/cell_type.h"
#include "partition/mesh/mesh_graph.h"
#include "tests/io/vtk/vtk_oracle.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>
#include <vtkCell.h>
#include <vtkCellArray.h>
#include <vtkCellType.h>
#include <vtkGenericCell.h>
#include <vtkNew.h>
#include <vtkPoints.h>
#include <vtkSmartPointer.h>
#include <vtkUnstructuredGrid.h>

#include <cmath>
#include <set>
#include <vector>

namespace meshard {
namespace {

struct Sample {
    int type = 0;
    int num_points = 0;
};

/// Numbers of points of Lagrange and Bezier cells of this order.
std::vector<Sample> curved_cells(int n)
{
    const int edge = n + 1, triangle = (n + 1) * (n + 2) / 2, tetra = (n + 1) * (n + 2) * (n + 3) / 6;
    std::vector<Sample> samples;
    for (const int first : {VTK_LAGRANGE_CURVE, VTK_BEZIER_CURVE})
        for (const auto& [place, num_points] : {std::pair{0, edge},
                                                {1, triangle},
                                                {2, edge * edge},
                                                {3, tetra},
                                                {4, edge * edge * edge},
                                                {5, edge * triangle}})
            samples.push_back({first + place, num_points});
    return samples;
}

std::vector<Sample> all_samples()
{
    std::vector<Sample> samples{{VTK_POLY_VERTEX, 3},
                                {VTK_POLY_LINE, 4},
                                {VTK_TRIANGLE_STRIP, 5},
                                {VTK_POLYGON, 7},
                                {VTK_QUADRATIC_POLYGON, 10}};
    std::set<int> taken{VTK_CONVEX_POINT_SET, VTK_POLYHEDRON};
    for (const Sample& sample : samples) taken.insert(sample.type);
    for (int type = 1; type < VTK_LAGRANGE_CURVE; ++type) {
        const auto cell = vtkSmartPointer<vtkCell>::Take(vtkGenericCell::InstantiateCell(type));
        if (cell != nullptr && taken.insert(type).second)
            samples.push_back({type, static_cast<int>(cell->GetNumberOfPoints())});
    }
    for (const int order : {1, 2, 3})
        for (const Sample& sample : curved_cells(order)) samples.push_back(sample);
    return samples;
}

Mesh one_cell(const Sample& sample)
{
    Mesh mesh;
    std::vector<double> coordinates;
    std::vector<std::int32_t> points;
    for (int i = 0; i < sample.num_points; ++i) {
        coordinates.insert(coordinates.end(), {std::cos(i), std::sin(2.0 * i), 0.1 * i});
        points.push_back(i);
    }
    mesh.points = DataArray::from("Points", std::move(coordinates), 3);
    mesh.cells.push_row(points);
    mesh.cell_types.push_back(static_cast<std::uint8_t>(sample.type));
    return mesh;
}

/// Corners of each facet of one dimension less, as VTK sees them.
std::vector<std::vector<std::int32_t>> facets_by_vtk(const Sample& sample)
{
    vtkNew<vtkUnstructuredGrid> grid;
    vtkNew<vtkPoints> points;
    const Mesh mesh = one_cell(sample);
    std::vector<vtkIdType> ids;
    for (int i = 0; i < sample.num_points; ++i)
        ids.push_back(
            points->InsertNextPoint(mesh.points.value(i, 0), mesh.points.value(i, 1), mesh.points.value(i, 2)));
    grid->SetPoints(points);
    grid->InsertNextCell(sample.type, sample.num_points, ids.data());
    vtkCell* cell = grid->GetCell(0);
    std::vector<std::vector<std::int32_t>> facets;
    const auto add = [&](vtkCell* facet, int num_corners) {
        facets.emplace_back();
        for (int k = 0; k < num_corners; ++k) facets.back().push_back(static_cast<std::int32_t>(facet->GetPointId(k)));
    };
    if (cell->GetCellDimension() == 3)
        for (int i = 0; i < cell->GetNumberOfFaces(); ++i) add(cell->GetFace(i), cell->GetFace(i)->GetNumberOfEdges());
    else if (cell->GetCellDimension() == 2)
        for (int i = 0; i < cell->GetNumberOfEdges(); ++i) add(cell->GetEdge(i), 2);
    return facets;
}

TEST(CellTypes, ComeBackAsTheyAreFromEveryFormat)
{
    const TemporaryFolder folder;
    for (const Sample& sample : all_samples()) {
        Mesh mesh = one_cell(sample);
        add_sample_arrays(mesh);
        SCOPED_TRACE(cell_type_name(mesh.cell_types[0]) + " of " + std::to_string(sample.num_points));

        write_with_vtk(folder / "theirs.vtu", mesh, {.compressor = VtkEncoding::Zlib});
        const Mesh read = read_mesh(folder / "theirs.vtu");
        write_mesh(folder / "ours.vtu", read);
        write_mesh(folder / "ours.vtkhdf", read);

        EXPECT_EQ(difference(read, mesh), "");
        EXPECT_EQ(vtk_difference(folder / "ours.vtu", mesh), "");
        EXPECT_EQ(difference(read_mesh(folder / "ours.vtkhdf"), mesh), "");
    }
}

/// VTK 9 changed the order of the points of curved hexahedra, and tells files of before by their version.
TEST(CellTypes, OfOlderFilesGetTheOrderThatVtkGivesThem)
{
    const TemporaryFolder folder;
    for (const int type : {VTK_LAGRANGE_HEXAHEDRON, VTK_BEZIER_HEXAHEDRON})
        for (const int num_points : {8, 27, 64, 125}) {
            const Mesh mesh = one_cell({type, num_points});
            write_mesh(folder / "new.vtu", mesh);
            std::string bytes = read_bytes(folder / "new.vtu");
            const std::size_t at = bytes.find("version=\"2.2\"");
            ASSERT_NE(at, std::string::npos);
            write_bytes(folder / "old.vtu", bytes.replace(at, 13, "version=\"1.0\""));

            const Mesh old = read_mesh(folder / "old.vtu");

            EXPECT_EQ(vtk_difference(folder / "old.vtu", old), "") << type << " of " << num_points;
            EXPECT_EQ(old.cells == mesh.cells, num_points == 8);
        }
}

TEST(CellTypes, AreCutByTheCornersThatVtkGivesThem)
{
    int num_solids = 0, num_flat = 0;
    for (const Sample& sample : all_samples()) {
        const auto facets = facets_by_vtk(sample);
        Mesh mesh = one_cell(sample);
        for (const auto& facet : facets) {
            mesh.cells.push_row(facet);
            mesh.cell_types.push_back(facet.size() == 2 ? VTK_LINE : VTK_POLYGON);
        }
        SCOPED_TRACE(cell_type_name(mesh.cell_types[0]) + " of " + std::to_string(sample.num_points));

        const Csr graph = cell_graph(mesh);

        const auto neighbors = graph.row(0);
        for (std::int32_t i = 1; i < mesh.num_cells(); ++i)
            EXPECT_TRUE(std::ranges::find(neighbors, i) != neighbors.end()) << "facet " << i - 1;
        if (sample.type != VTK_TRIANGLE_STRIP) {  // whose triangles have edges between them, too
            EXPECT_EQ(neighbors.size(), facets.size());
        }
        num_solids += cell_dimension(mesh.cell_types[0]) == 3;
        num_flat += cell_dimension(mesh.cell_types[0]) == 2;
    }
    EXPECT_GE(num_solids, 15 + 3 * 6);
    EXPECT_GE(num_flat, 11 + 3 * 4);
}

}  // namespace
}  // namespace meshard
