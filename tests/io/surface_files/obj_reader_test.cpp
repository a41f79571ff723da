// SPDX-License-Identifier: Apache-2.0
#include "io/mesh_io.h"
#include "io/surface_files/obj_reader.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>
#include <vtkCell.h>
#include <vtkNew.h>
#include <vtkOBJReader.h>
#include <vtkPolyData.h>

namespace meshard {
namespace {

constexpr const char* house =
    "# a house\r\nmtllib house.mtl\nv 0 0 0\nv 1 0 0 # with a comment\nv 1 1 0\nv 0 1 0\nv 0.5 1.5 1e-1\n"
    "vt 0 0\nvn 0 0 1\nusemtl brick\ng wall#1\nf 1/1/1 2/1/1 3/1/1 4/1/1\ng roof\nf 4//1 3//1 \\\n 5//1\nf -2 -3 -1\nl "
    "1 "
    "2 3\n";

TEST(ObjReader, ReadsPointsFacesLinesAndGroups)
{
    const TemporaryFolder folder;
    write_bytes(folder / "house.obj", house);

    const Mesh mesh = read_mesh(folder / "house.obj");

    mesh.validate();
    EXPECT_EQ(mesh.kind, MeshKind::Surface);
    EXPECT_EQ(mesh.num_points(), 5);
    EXPECT_EQ(mesh.points.value(4, 2), 0.1);
    EXPECT_EQ(mesh.cell_types, (std::vector<std::uint8_t>{4, 9, 5, 5}));
    EXPECT_TRUE(std::ranges::equal(mesh.cells.row(2), std::vector<std::int32_t>{3, 2, 4}));
    EXPECT_TRUE(std::ranges::equal(mesh.cells.row(3), std::vector<std::int32_t>{3, 2, 4}));
    EXPECT_TRUE(std::ranges::equal(find_array(mesh.cell_data, "GroupId")->values<std::int32_t>(),
                                   std::vector<std::int32_t>{1, 0, 1, 1}));
    EXPECT_EQ(find_array(mesh.field_data, "GroupName")->strings()[1], "roof");
}

TEST(ObjReader, AgreesWithVtk)
{
    const TemporaryFolder folder;
    const auto path = folder / "plain.obj";
    write_bytes(path, "# C:\\models\\\nv 0 0 0\nv 1 0 0\nv 1.25 1 0\nv 0 1 0.125\nf 1 2 3\nf 1 3 4\nf 4 3 2 1\n");
    vtkNew<vtkOBJReader> reader;
    reader->SetFileName(path.c_str());
    reader->Update();
    vtkPolyData* const theirs = reader->GetOutput();

    const Mesh mesh = read_mesh(path);

    ASSERT_EQ(mesh.num_points(), theirs->GetNumberOfPoints());
    for (std::int64_t i = 0; i < mesh.num_points(); ++i)
        for (int c = 0; c < 3; ++c) EXPECT_EQ(mesh.points.value(i, c), theirs->GetPoint(i)[c]);
    ASSERT_EQ(mesh.num_cells(), theirs->GetNumberOfCells());
    for (std::int64_t i = 0; i < mesh.num_cells(); ++i) {
        ASSERT_EQ(static_cast<vtkIdType>(mesh.cells.row(i).size()), theirs->GetCell(i)->GetNumberOfPoints());
        for (std::size_t k = 0; k < mesh.cells.row(i).size(); ++k)
            EXPECT_EQ(mesh.cells.row(i)[k], theirs->GetCell(i)->GetPointId(static_cast<int>(k)));
    }
}

TEST(ObjReader, SaysWhatIsWrong)
{
    const TemporaryFolder folder;
    const auto expect = [&](const char* text, const char* message) {
        write_bytes(folder / "bad.obj", text);
        EXPECT_TRUE(throws_with<IoError>(message, [&] { read_mesh(folder / "bad.obj"); })) << text;
    };
    expect("", "has no points");
    expect("hello\n", "has no points");
    expect("v 1 2\n", "three numbers are expected");
    expect("v 1 2 x\n", "three numbers are expected");
    expect("v 1 2 3\nf 1 1\n", "has 2 points, expected 3");
    expect("v 1 2 3\nf 1 0 1\n", "uses the point '0'");
    expect("v 1 2 3\nf 1 -2 1\n", "uses the point '-2'");
    expect("v 1 2 3\nf 1 2 3\n", "uses the point 3, but has only 1");
    expect("v 1 2 3\nf 1 99999999999999999999 3\n", "uses the point '99999999999999999999'");
}

}  // namespace
}  // namespace meshard
