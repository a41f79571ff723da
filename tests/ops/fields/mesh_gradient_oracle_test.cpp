// SPDX-License-Identifier: Apache-2.0
// Gradients of fields that are not linear, on mixed cells, against VTK's.
#include "ops/fields/mesh_operators.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/sample_meshes.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <vtkCellData.h>
#include <vtkCellDerivatives.h>
#include <vtkDoubleArray.h>
#include <vtkGradientFilter.h>
#include <vtkIdList.h>
#include <vtkNew.h>
#include <vtkPointData.h>
#include <vtkPoints.h>
#include <vtkSmartPointer.h>
#include <vtkUnstructuredGrid.h>

namespace meshard {
namespace {

/// Sheared boxes that are a hexahedron, two wedges or six tetrahedra by turns: what is linear in each cell's own
/// coordinates has one mean gradient, whether it is taken in the middle or over the faces.
Mesh sheared_solids(std::int32_t n)
{
    const Mesh boxes = cube(n), tets = tet_cube(n);
    Mesh mesh;
    auto positions = boxes.points.to_doubles();
    for (std::size_t i = 0; i < positions.size(); i += 3) {
        const double x = positions[i], y = positions[i + 1], z = positions[i + 2];
        positions[i] = 1.3 * x + 0.4 * y - 0.2 * z;
        positions[i + 1] = 0.9 * y + 0.3 * z;
        positions[i + 2] = 0.7 * z + 0.1 * x;
    }
    mesh.points = DataArray::from("Points", positions, 3);
    const auto add = [&](std::uint8_t type, const std::vector<std::int32_t>& points) {
        mesh.cells.push_row(points);
        mesh.cell_types.push_back(type);
    };
    for (std::int32_t box = 0; box < boxes.num_cells(); ++box) {
        const auto p = boxes.cells.row(box);
        if (box % 3 == 0) {
            add(12, {p.begin(), p.end()});
        } else if (box % 3 == 1) {  // VTK's wedges are left-handed seen from below
            add(13, {p[0], p[2], p[1], p[4], p[6], p[5]});
            add(13, {p[0], p[3], p[2], p[4], p[7], p[6]});
        } else {
            for (std::int32_t t = 6 * box; t < 6 * box + 6; ++t) {
                const auto q = tets.cells.row(t);
                add(10, {q.begin(), q.end()});
            }
        }
    }
    mesh.validate();
    return mesh;
}

vtkSmartPointer<vtkUnstructuredGrid> grid_of(const Mesh& mesh)
{
    const auto grid = vtkSmartPointer<vtkUnstructuredGrid>::New();
    vtkNew<vtkPoints> points;
    points->SetDataTypeToDouble();
    const auto positions = mesh.points.to_doubles();
    for (std::size_t i = 0; i < positions.size(); i += 3) points->InsertNextPoint(&positions[i]);
    grid->SetPoints(points);
    for (std::int64_t cell = 0; cell < mesh.num_cells(); ++cell) {
        vtkNew<vtkIdList> ids;
        for (const auto point : mesh.cells.row(cell)) ids->InsertNextId(point);
        grid->InsertNextCell(mesh.cell_types[cell], ids);
    }
    return grid;
}

vtkSmartPointer<vtkDoubleArray> array_of(const at::Tensor& values)
{
    const auto array = vtkSmartPointer<vtkDoubleArray>::New();
    array->SetName("f");
    for (std::int64_t i = 0; i < values.numel(); ++i) array->InsertNextValue(values.const_data_ptr<double>()[i]);
    return array;
}

at::Tensor tensor_of(vtkDataArray* array)
{
    auto values = at::empty({array->GetNumberOfTuples(), 3}, at::kDouble);
    for (vtkIdType i = 0; i < array->GetNumberOfTuples(); ++i)
        array->GetTuple(i, values.mutable_data_ptr<double>() + 3 * i);
    return values;
}

/// The result of VTK's gradient filter, at the points or the cells that the field belongs to.
at::Tensor vtk_gradient(vtkUnstructuredGrid* grid, bool of_points)
{
    vtkNew<vtkGradientFilter> filter;
    filter->SetInputData(grid);
    filter->SetInputScalars(
        of_points ? vtkDataObject::FIELD_ASSOCIATION_POINTS : vtkDataObject::FIELD_ASSOCIATION_CELLS, "f");
    filter->SetResultArrayName("gradient");
    filter->Update();
    auto* const output = vtkUnstructuredGrid::SafeDownCast(filter->GetOutput());
    return tensor_of(of_points ? output->GetPointData()->GetArray("gradient")
                               : output->GetCellData()->GetArray("gradient"));
}

at::Tensor wavy(const at::Tensor& positions)
{
    return (positions.select(1, 0) * 2).sin() * positions.select(1, 1).add(1).square() + positions.select(1, 2).exp();
}

at::Tensor positions_of(const Mesh& mesh)
{
    return at::tensor(mesh.points.to_doubles(), at::kDouble).view({-1, 3});
}

/// To rounding; in wedges to six digits, since VTK takes 0.333333 for the middle of a triangle.
void expect_near(const Mesh& mesh, const at::Tensor& found, const at::Tensor& expected)
{
    const auto is_wedge =
        at::tensor(std::vector<std::int64_t>(mesh.cell_types.begin(), mesh.cell_types.end()), at::kLong).eq(13);
    for (const bool of_wedges : {false, true}) {
        const auto cells = is_wedge.eq(of_wedges).nonzero().view({-1});
        EXPECT_TRUE(
            tensors_near(found.index_select(0, cells), expected.index_select(0, cells), of_wedges ? 1e-6 : 1e-12));
    }
}

TEST(MeshGradientOracle, OfPointFieldsIsVtksInTheMiddleOfEachCell)
{
    const Mesh mesh = sheared_solids(4);
    const auto field = wavy(positions_of(mesh));
    const auto grid = grid_of(mesh);
    grid->GetPointData()->SetScalars(array_of(field));
    vtkNew<vtkCellDerivatives> derivatives;
    derivatives->SetInputData(grid);
    derivatives->SetVectorModeToComputeGradient();
    derivatives->Update();

    const auto found = green_gauss_gradient(MeshGeometry(mesh))(field);

    expect_near(mesh, found, tensor_of(derivatives->GetOutput()->GetCellData()->GetVectors()));
}

TEST(MeshGradientOracle, OfCellFieldsIsVtksByWayOfThePoints)
{
    const Mesh mesh = sheared_solids(4);
    const MeshGeometry geometry(mesh);
    const auto field = wavy(geometry.centroids());
    const auto grid = grid_of(mesh);
    grid->GetCellData()->SetScalars(array_of(field));

    const auto found = green_gauss_gradient(geometry)(cells_to_points(geometry)(field));

    expect_near(mesh, found, vtk_gradient(grid, false));
}

TEST(MeshGradientOracle, AtThePointsOfTetrahedraIsTheMeanOverTheirCells)
{
    const Mesh mesh = tet_cube(4);
    const MeshGeometry geometry(mesh);
    const auto field = wavy(positions_of(mesh));
    const auto grid = grid_of(mesh);
    grid->GetPointData()->SetScalars(array_of(field));

    const auto found = cells_to_points(geometry)(green_gauss_gradient(geometry)(field));

    EXPECT_TRUE(tensors_near(found, vtk_gradient(grid, true), 1e-12));
}

TEST(MeshGradientOracle, LeastSquaresNearVtksAsTheMeshIsRefined)
{
    const auto difference = [](std::int32_t n) {
        const Mesh mesh = sheared_solids(n);
        const MeshGeometry geometry(mesh);
        const auto field = wavy(geometry.centroids());
        const auto grid = grid_of(mesh);
        grid->GetPointData()->SetScalars(array_of(wavy(positions_of(mesh))));
        vtkNew<vtkCellDerivatives> derivatives;
        derivatives->SetInputData(grid);
        derivatives->SetVectorModeToComputeGradient();
        derivatives->Update();
        const auto found = least_squares_gradient(geometry, GradientNeighbors::Vertex)(field);
        return (found - tensor_of(derivatives->GetOutput()->GetCellData()->GetVectors())).norm().item<double>() /
               found.norm().item<double>();
    };
    const double coarse = difference(4), fine = difference(8);
    EXPECT_LT(fine, 0.6 * coarse);
}

}  // namespace
}  // namespace meshard
