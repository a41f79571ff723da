// SPDX-License-Identifier: Apache-2.0
#include "partition/mesh/stored_mesh.h"
#include "tests/support/sample_meshes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace meshard {
namespace {

TEST(HeldMesh, GivesTheCellsOfTheMesh)
{
    for (const auto& [name, mesh] : sample_meshes()) {
        SCOPED_TRACE(name);
        const HeldMesh held(mesh);
        EXPECT_EQ(held.num_rows(), mesh.num_rows());
        EXPECT_EQ(held.num_cell_entries(), mesh.cells.num_entries() + mesh.face_streams.num_entries());
        std::vector<std::int32_t> all(mesh.num_cells());
        std::iota(all.begin(), all.end(), 0);

        Mesh whole = held.cells(all);
        whole.point_data = held.rest().point_data;
        whole.cell_data = held.rest().cell_data;
        whole.field_data = held.rest().field_data;
        EXPECT_EQ(difference(whole, mesh), "");

        for (const auto cell : all) {
            const Mesh one = held.cells(std::vector{cell});
            EXPECT_TRUE(std::ranges::equal(one.cells.row(0), mesh.cells.row(cell)));
            EXPECT_EQ(one.cell_types.front(), mesh.cell_types[cell]);
            const bool is_polyhedron = mesh.has_polyhedra() && !mesh.face_streams.row(cell).empty();
            EXPECT_EQ(one.has_polyhedra(), is_polyhedron);
            if (is_polyhedron) {
                EXPECT_TRUE(std::ranges::equal(one.face_streams.row(0), mesh.face_streams.row(cell)));
            }
        }
    }
}

}  // namespace
}  // namespace meshard
