// SPDX-License-Identifier: Apache-2.0
#include "io/mesh_io.h"
#include "partition/error.h"
#include "tests/io/vtk/vtk_oracle.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

namespace meshard {
namespace {

TEST(MeshIo, SaysWhatIsWrongWithAPath)
{
    const TemporaryFolder folder;
    const auto read = [&](const std::string& name) { return [&folder, name] { read_mesh(folder / name); }; };

    EXPECT_TRUE(throws_with<IoError>("absent.vtu does not exist", read("absent.vtu")));
    EXPECT_TRUE(throws_with<IoError>("absent.vtk does not exist", read("absent.vtk")));
    EXPECT_TRUE(throws_with<IoError>("absent.stl does not exist", read("absent.stl")));
    EXPECT_TRUE(throws_with<IoError>("absent.pvtu does not exist", read("absent.pvtu")));
    EXPECT_TRUE(throws_with<IoError>("known are .vtu .vtp", read("mesh.xyz")));
    EXPECT_TRUE(throws_with<IoError>("mesh does not exist. Check the path", read("mesh")));
    write_bytes(folder / "mesh", "1 2 3");
    EXPECT_TRUE(throws_with<IoError>("known are .vtu .vtp", read("mesh")));
    std::filesystem::create_directory(folder / "dir.vtu");
    EXPECT_TRUE(throws_with<IoError>("is a folder", read("dir.vtu")));
}

TEST(MeshIo, RefusesWhatIsNoMesh)
{
    const TemporaryFolder folder;
    for (const char* extension : {"vtu", "vtp", "pvtu", "pvtp", "vtk", "stl", "ply"}) {
        const auto path = folder / (std::string("file.") + extension);
        for (const std::string& content : {std::string(), std::string("hello, world\n"), std::string("\0\1\2\3", 4),
                                           std::string("<html><body>404</body></html>"), std::string(3000, 'x')}) {
            write_bytes(path, content);
            EXPECT_TRUE(throws_with<IoError>("file.", [&] { read_mesh(path); }))
                << extension << " " << content.substr(0, 20);
        }
    }
}

TEST(MeshIo, RefusesOtherKindsOfData)
{
    const TemporaryFolder folder;
    write_bytes(folder / "image.vtu", R"(<VTKFile type="ImageData"><ImageData></ImageData></VTKFile>)");
    EXPECT_TRUE(throws_with<IoError>("found 'ImageData'", [&] { read_mesh(folder / "image.vtu"); }));

    write_bytes(folder / "grid.vtk",
                "# vtk DataFile Version 3.0\ntitle\nASCII\nDATASET STRUCTURED_POINTS\nDIMENSIONS 2 2 2\n"
                "ORIGIN 0 0 0\nSPACING 1 1 1\n");
    EXPECT_TRUE(throws_with<IoError>("vtkStructuredPoints", [&] { read_mesh(folder / "grid.vtk"); }));
}

TEST(MeshIo, RefusesToWriteWhatDoesNotHoldTogether)
{
    const TemporaryFolder folder;
    Mesh short_array = cube(2), outside = cube(2);
    short_array.cell_data.front() = DataArray::from("f", std::vector<double>{1});
    outside.cells.indices.front() = 100000;
    for (const char* name : {"a.vtu", "a.pvtu", "a.vtkhdf"}) {
        EXPECT_THROW(write_mesh(folder / name, short_array), InvalidInput) << name;
        EXPECT_THROW(write_mesh(folder / name, outside), InvalidInput) << name;
    }
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(MeshIo, RefusesToWriteWhatTheFormatCannotHold)
{
    const TemporaryFolder folder;
    Mesh turned = two_triangles();
    turned.cells.push_row(std::vector<std::int32_t>{0});
    turned.cell_types.push_back(1);
    turned.cell_data.clear();
    Mesh zero = two_triangles();
    zero.field_data.push_back(DataArray::from_strings("zero", {std::string("a\0b", 3)}));

    EXPECT_TRUE(throws_with<InvalidInput>("hexahedron, which .vtp cannot hold",
                                          [&] { write_mesh(folder / "a.vtp", cube(1)); }));
    EXPECT_TRUE(throws_with<InvalidInput>("comes after Polys", [&] { write_mesh(folder / "a.vtp", turned); }));
    EXPECT_TRUE(throws_with<InvalidInput>("the character 0", [&] { write_mesh(folder / "a.vtp", zero); }));
    EXPECT_TRUE(throws_with<IoError>("writable are .vtu .vtp", [&] { write_mesh(folder / "a.stl", cube(1)); }));
    EXPECT_TRUE(throws_with<IoError>("there is no folder", [&] { write_mesh(folder / "no/a.vtu", cube(1)); }));
    EXPECT_EQ(folder.size(), 0);
}

TEST(MeshIo, ReadsLegacyFilesThroughVtk)
{
    const TemporaryFolder folder;
    for (const auto& [name, sample] : sample_meshes())
        for (const bool binary : {false, true}) {
            if (sample.num_points() == 0) continue;
            Mesh mesh = sample;
            mesh.field_data.clear();  // the legacy format writes strings of field data in a way of its own
            write_legacy_with_vtk(folder / "mesh.vtk", mesh, binary);

            const Mesh read = read_mesh(folder / "mesh.vtk");

            EXPECT_EQ(vtk_difference(folder / "mesh.vtk", read), "") << name;
            EXPECT_EQ(read.kind, mesh.kind) << name;
            EXPECT_TRUE(mesh.has_polyhedra() || read.cells == mesh.cells)
                << name;  // VTK orders a polyhedron's points itself
            EXPECT_EQ(read.cell_types, mesh.cell_types) << name;
            EXPECT_TRUE(!binary || read.points.same_bits(mesh.points)) << name;
            EXPECT_EQ(read.cell_data.size(), mesh.num_cells() == 0 ? 0 : mesh.cell_data.size()) << name;
        }
}

TEST(MeshIo, KeepsVtkQuiet)
{
    const TemporaryFolder folder;
    write_bytes(folder / "bad.vtk",
                "# vtk DataFile Version 3.0\ntitle\nASCII\nDATASET POLYDATA\nPOINTS 5 float\n0 0 0\n");

    testing::internal::CaptureStderr();
    EXPECT_TRUE(throws_with<IoError>("VTK says", [&] { read_mesh(folder / "bad.vtk"); }));

    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(MeshIo, ReadsUnusualButValidXml)
{
    const TemporaryFolder folder;
    write_bytes(
        folder / "odd.vtu",
        "\xEF\xBB\xBF<?xml version='1.0'?>\r\n<!-- a > b -->\n<VTKFile type='UnstructuredGrid' \n>"
        "<UnstructuredGrid><Piece NumberOfPoints=' 1 ' NumberOfCells='1'><PointData Scalars='a&amp;b&#x41;'>"
        "<DataArray type='UInt8' Name='a&amp;b&#65;' format='ascii'><!-- c --> 255 </DataArray></PointData>"
        "<Points><DataArray type='Float64' NumberOfComponents='3' format='ascii'>1e400 1e-400 +5</DataArray></Points>"
        "<Cells><DataArray type='UInt16' Name='connectivity' format='ascii'>0</DataArray>"
        "<DataArray type='UInt8' Name='offsets' format='ascii'>1</DataArray>"
        "<DataArray type='Int32' Name='types' "
        "format='ascii'>1</DataArray></Cells></Piece></UnstructuredGrid></VTKFile>\n\n");

    const Mesh mesh = read_mesh(folder / "odd.vtu");

    EXPECT_EQ(mesh.point_data[0].name(), "a&bA");
    EXPECT_EQ(mesh.point_data[0].attribute, "Scalars");
    EXPECT_EQ(mesh.point_data[0].value(0), 255);
    EXPECT_EQ(mesh.points.value(0, 2), 5);
    EXPECT_EQ(mesh.points.value(0, 1), 0);
    EXPECT_GT(mesh.points.value(0, 0), 1e308);
}

}  // namespace
}  // namespace meshard
