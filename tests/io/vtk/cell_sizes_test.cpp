// SPDX-License-Identifier: Apache-2.0
#include "partition/mesh/cell_geometry.h"
#include "tests/io/vtk/vtk_oracle.h"
#include "tests/support/sample_meshes.h"

#include <gtest/gtest.h>

#include <cmath>

namespace meshard {
namespace {

TEST(CellSizes, AreThoseOfVtk)
{
    for (const auto& [name, mesh] : sample_meshes()) {
        if (name == "surface_of_all_kinds")
            continue;  // polygons that are not plane, of which VTK takes other triangles
        const auto sizes = cell_measures(mesh).sizes, expected = vtk_cell_sizes(mesh);

        ASSERT_EQ(sizes.size(), expected.size()) << name;
        for (std::size_t i = 0; i < sizes.size(); ++i)
            EXPECT_NEAR(sizes[i], std::abs(expected[i]), 1e-6 * std::abs(expected[i])) << name << " cell " << i;
    }
}

}  // namespace
}  // namespace meshard
