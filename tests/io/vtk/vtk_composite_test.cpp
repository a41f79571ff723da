// SPDX-License-Identifier: Apache-2.0
// EnSight and Exodus files, which VTK's readers bring in.
#include "io/mesh_io.h"
#include "io/series.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>
#include <vtkCellArray.h>
#include <vtkDoubleArray.h>
#include <vtkExodusIIWriter.h>
#include <vtkNew.h>
#include <vtkPointData.h>
#include <vtkPoints.h>
#include <vtkUnstructuredGrid.h>

namespace meshard {
namespace {

/// Two parts: a tetrahedron and a triangle; `p` on points, `q` on elements, at the times 0 and 2.
void write_ensight(const TemporaryFolder& folder)
{
    write_bytes(folder / "run.case",
                "FORMAT\ntype: ensight gold\n\nGEOMETRY\nmodel: run.geo\n\nVARIABLE\nscalar per node: 1 p p.***\n"
                "scalar per element: q q.scl\n\nTIME\ntime set: 1\nnumber of steps: 2\nfilename start number: "
                "0\nfilename increment: 1\n"
                "time values: 0.0 2.0\n");
    write_bytes(
        folder / "run.geo",
        "geometry\nof a test\nnode id assign\nelement id assign\npart\n         1\nbody\ncoordinates\n         4\n"
        " 0.00000e+00\n 1.00000e+00\n 0.00000e+00\n 0.00000e+00\n 0.00000e+00\n 0.00000e+00\n 1.00000e+00\n "
        "0.00000e+00\n"
        " 0.00000e+00\n 0.00000e+00\n 0.00000e+00\n 1.00000e+00\ntetra4\n         1\n         1         2         3    "
        "     4\n"
        "part\n         2\nskin\ncoordinates\n         3\n 5.00000e+00\n 6.00000e+00\n 5.00000e+00\n 0.00000e+00\n "
        "0.00000e+00\n"
        " 1.00000e+00\n 0.00000e+00\n 0.00000e+00\n 0.00000e+00\ntria3\n         1\n         1         2         3\n");
    for (int step = 0; step < 2; ++step)
        write_bytes(folder / ("p.00" + std::to_string(step)),
                    "pressure\npart\n         1\ncoordinates\n 1.00000e+00\n 2.00000e+00\n 3.00000e+00\n " +
                        std::to_string(step + 4) +
                        ".00000e+00\npart\n         2\ncoordinates\n 5.00000e+00\n 6.00000e+00\n 7.00000e+00\n");
    write_bytes(folder / "q.scl",
                "quality\npart\n         1\ntetra4\n 8.00000e+00\npart\n         2\ntria3\n 9.00000e+00\n");
}

TEST(VtkComposite, ReadsEnSightGold)
{
    const TemporaryFolder folder;
    write_ensight(folder);

    const Mesh mesh = read_mesh(folder / "run.case");

    mesh.validate();
    EXPECT_EQ(mesh.num_points(), 7);
    EXPECT_EQ(mesh.cell_types, (std::vector<std::uint8_t>{10, 5}));
    EXPECT_EQ(find_array(mesh.point_data, "p")->value(3), 5);  // of the last time
    EXPECT_EQ(find_array(mesh.cell_data, "q")->value(1), 9);
    EXPECT_EQ(find_array(mesh.field_data, "TimeValue")->value(0), 2);
    EXPECT_EQ(find_array(mesh.field_data, "BlockName")->strings()[0], "body");
    EXPECT_EQ(find_array(mesh.field_data, "BlockName")->strings()[1], "skin");

    ReadOptions options;
    options.time = 0;
    options.blocks = {"body"};
    const Mesh body = read_mesh(folder / "run.case", options);
    EXPECT_EQ(body.num_cells(), 1);
    EXPECT_EQ(find_array(body.point_data, "p")->value(3), 4);
    options.time = 1;
    EXPECT_TRUE(throws_with<IoError>("has no such time", [&] { read_mesh(folder / "run.case", options); }));

    auto text = read_bytes(folder / "run.case");
    write_bytes(folder / "late.case", text.replace(text.find("0.0 2.0"), 7, "1000\n1000.00002"));
    EXPECT_TRUE(throws_with<IoError>("late.case: its times 1000 and 1000.00002 are one number in single precision",
                                     [&] { read_series(folder / "late.case"); }));

    const auto states = read_series(folder / "run.case");
    ASSERT_EQ(states.size(), 2);
    EXPECT_EQ(states[0].time, 0);
    EXPECT_EQ(states[1].time, 2);
    EXPECT_EQ(states[1].time_in_file, 2);
}

TEST(VtkComposite, ReadsExodus)
{
    const TemporaryFolder folder;
    vtkNew<vtkUnstructuredGrid> grid;
    vtkNew<vtkPoints> points;
    points->SetDataTypeToDouble();
    vtkNew<vtkDoubleArray> pressure;
    pressure->SetName("p");
    for (int i = 0; i < 8; ++i) {
        points->InsertNextPoint(i & 1, i >> 1 & 1, i >> 2);
        pressure->InsertNextValue(0.5 * i);
    }
    grid->SetPoints(points);
    const vtkIdType hexahedron[] = {0, 1, 3, 2, 4, 5, 7, 6};
    grid->InsertNextCell(VTK_HEXAHEDRON, 8, hexahedron);
    grid->GetPointData()->AddArray(pressure);
    vtkNew<vtkExodusIIWriter> writer;
    writer->SetInputData(grid);
    writer->SetFileName((folder / "box.exo").c_str());
    ASSERT_EQ(writer->Write(), 1);

    const Mesh mesh = read_mesh(folder / "box.exo");

    mesh.validate();
    ASSERT_EQ(mesh.num_cells(), 1);
    EXPECT_EQ(mesh.cell_types[0], 12);
    ASSERT_EQ(mesh.num_points(), 8);
    const DataArray* p = find_array(mesh.point_data, "p");
    ASSERT_NE(p, nullptr);
    for (std::int64_t i = 0; i < 8; ++i)
        EXPECT_EQ(p->value(i),
                  0.5 * (mesh.points.value(i, 0) + 2 * mesh.points.value(i, 1) + 4 * mesh.points.value(i, 2)));
}

TEST(VtkComposite, RefusesWhatIsNoneOfThem)
{
    const TemporaryFolder folder;
    for (const char* name : {"a.case", "a.encas", "a.exo", "a.e", "a.cgns"}) {
        EXPECT_TRUE(throws_with<IoError>("does not exist", [&] { read_mesh(folder / name); })) << name;
        for (const std::string& content : {std::string(), std::string("hello, world\n"), std::string(3000, 'x')}) {
            write_bytes(folder / name, content);
            EXPECT_THROW(read_mesh(folder / name), IoError) << name << " " << content.substr(0, 10);
        }
        std::filesystem::remove(folder / name);
    }
}

}  // namespace
}  // namespace meshard
