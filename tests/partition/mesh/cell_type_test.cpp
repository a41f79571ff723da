// SPDX-License-Identifier: Apache-2.0
#include "partition/mesh/cell_type.h"

#include <gtest/gtest.h>
#include <vtkCell.h>
#include <vtkGenericCell.h>
#include <vtkSmartPointer.h>

#include <algorithm>
#include <set>

namespace meshard {
namespace {

vtkSmartPointer<vtkCell> vtk_cell(int number)
{
    return vtkSmartPointer<vtkCell>::Take(vtkGenericCell::InstantiateCell(number));
}

TEST(CellType, HasVtksDimensionsAndNumbersOfPoints)
{
    for (int number = 1; number < 256; ++number) {
        const auto cell = vtk_cell(number);
        if (!cell) continue;
        const auto& type = cell_type_of(static_cast<std::uint8_t>(number));
        EXPECT_FALSE(type.name.empty()) << number;
        EXPECT_EQ(type.dimension, cell->GetCellDimension()) << type.name;
        if (type.fixed_size) {
            EXPECT_EQ(type.min_points, cell->GetNumberOfPoints()) << type.name;
        }
    }
}

TEST(CellType, HasVtksFacesByTheirCorners)
{
    constexpr int first_lagrange =
        60;  // without points VTK cannot give these faces; their corners come first as in the others
    for (int number = 1; number < first_lagrange; ++number) {
        const auto& type = cell_type_of(static_cast<std::uint8_t>(number));
        const auto faces = solid_faces(type.shape);
        const auto cell = vtk_cell(number);
        if (!cell || faces.empty()) continue;
        std::set<std::set<int>> expected, found;
        int num_corners = 0;
        for (const auto& face : faces) {
            found.emplace(face.begin(), face.end());
            for (const int corner : face) num_corners = std::max(num_corners, corner + 1);
        }
        for (int i = 0; i < cell->GetNumberOfPoints(); ++i) cell->GetPointIds()->SetId(i, i);
        for (int f = 0; f < cell->GetNumberOfFaces(); ++f) {
            auto* face = cell->GetFace(f);
            std::set<int> corners;
            for (int i = 0; i < face->GetNumberOfPoints(); ++i)
                if (face->GetPointId(i) < num_corners) corners.insert(static_cast<int>(face->GetPointId(i)));
            expected.insert(corners);
        }
        EXPECT_EQ(found, expected) << type.name;
    }
}

}  // namespace
}  // namespace meshard
