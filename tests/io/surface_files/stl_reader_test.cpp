// SPDX-License-Identifier: Apache-2.0
#include "io/mesh_io.h"
#include "io/surface_files/stl_reader.h"
#include "partition/error.h"
#include "tests/io/vtk/vtk_oracle.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

#include <cstring>

namespace meshard {
namespace {

constexpr const char* two_solids = R"(solid front wing
 facet normal 0 0 1
  outer loop
   vertex 0 0 0
   vertex 1 0 0
   vertex 1 1 0
  endloop
 endfacet
endsolid front wing
solid
facet normal 0 0 1 outer loop vertex 0 0 0 vertex 1.0e0 +1 -0 vertex 0 1 0 endloop endfacet
facet normal 0 0 1 outer loop vertex 0 0 0 vertex 0 1 0 vertex 0 2 0 endloop endfacet
endsolid
)";

std::string binary_stl(const Mesh& triangles)
{
    std::string bytes = "solid but binary";  // some programs write such headers
    bytes.resize(80);
    const auto count = static_cast<std::uint32_t>(triangles.num_cells());
    bytes.append(reinterpret_cast<const char*>(&count), 4);
    for (std::int64_t i = 0; i < triangles.num_cells(); ++i) {
        bytes.append(12, '\0');
        for (const auto point : triangles.cells.row(i))
            for (int k = 0; k < 3; ++k) {
                const auto value = static_cast<float>(triangles.points.value(point, k));
                bytes.append(reinterpret_cast<const char*>(&value), 4);
            }
        bytes.append(2, '\0');
    }
    return bytes;
}

TEST(Stl, ReadsSolidsWithTheirNames)
{
    const TemporaryFolder folder;
    write_bytes(folder / "a.stl", two_solids);

    const Mesh mesh = read_mesh(folder / "a.stl");

    EXPECT_NO_THROW(mesh.validate());
    EXPECT_EQ(mesh.kind, MeshKind::Surface);
    EXPECT_EQ(mesh.num_points(), 5);  // -0 is 0
    EXPECT_EQ(mesh.cells.indices, (std::vector<std::int32_t>{0, 1, 2, 0, 2, 3, 0, 3, 4}));
    EXPECT_EQ(mesh.cell_data.at(0).name(), "SolidId");
    EXPECT_EQ(mesh.cell_data[0].to_doubles(), (std::vector<double>{0, 1, 1}));
    EXPECT_EQ(mesh.field_data.at(0).strings()[0], "front wing");
    EXPECT_EQ(mesh.field_data[0].strings()[1], "");
}

TEST(Stl, ReadsBinaryAsVtkDoes)
{
    const TemporaryFolder folder;
    Mesh ball = sphere(6);
    write_bytes(folder / "a.stl", binary_stl(ball));

    const Mesh mesh = read_mesh(folder / "a.stl");

    EXPECT_EQ(mesh.num_points(), ball.num_points());
    EXPECT_EQ(vtk_difference(folder / "a.stl", mesh), "");
}

TEST(Stl, RefusesDamage)
{
    const TemporaryFolder folder;
    const auto path = folder / "a.stl";
    const auto expect_message = [&](const std::string& bytes, const char* message) {
        write_bytes(path, bytes);
        EXPECT_TRUE(throws_with<IoError>(message, [&] { read_mesh(path); }));
    };
    const std::string binary = binary_stl(sphere(3)), text = two_solids;

    expect_message(binary.substr(0, binary.size() - 1), "It is truncated or no STL file");
    expect_message(binary.substr(0, 83), "begins with 'solid' or a header of 84 bytes");
    expect_message(binary + "x", "It is truncated or no STL file");
    expect_message(text.substr(0, text.size() - 9), "before 'endsolid'. It is truncated");
    expect_message("solid a\nfacet normal 0 0 1 outer loop vertex 0 zero 0",
                   "expected 'a number' in triangle 0, found 'zero'");
    expect_message("solid a\nfacet normal 0 0 1 inner", "expected 'outer' in triangle 0, found 'inner'");
    expect_message("solid a\nhello", "expected 'facet' or 'endsolid' in triangle 0, found 'hello'");
    for (std::size_t size = 0; size + 10 < text.size(); ++size) {
        if (text.substr(0, size).ends_with("endsolid front wing\n")) continue;  // a whole solid: valid
        if (text.substr(0, size).find("endsolid") != std::string::npos &&
            text.substr(size - 10, 10).find("endsolid") != std::string::npos)
            continue;
        write_bytes(path, text.substr(0, size));
        try {
            EXPECT_EQ(read_mesh(path).num_cells(), 1) << size;  // cut in the name after `endsolid`
        } catch (const IoError&) {
        }
    }
}

}  // namespace
}  // namespace meshard
