// SPDX-License-Identifier: Apache-2.0
// CGNS, Exodus and EnSight files as the libraries of these formats and VTK's writers make them.
#include <gtest/gtest.h>
#include <vtkCellData.h>
#include <vtkDoubleArray.h>
#include <vtkEnSightWriter.h>
#include <vtkIntArray.h>
#include <vtkNew.h>
#include <vtkPointData.h>
#include <vtkPoints.h>
#include <vtkUnstructuredGrid.h>
#include <vtk_cgns.h>
#include VTK_CGNS(cgnslib.h)
#include "io/mesh_io.h"
#include "io/series.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

#include <vtkexodusII/include/exodusII.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <malloc.h>
#include <string>
#include <vector>

namespace meshard {
namespace {

/// Two unit cubes side by side, x from `first`.
struct TwoCubes {
    std::vector<double> x, y, z;
    std::vector<int> corners;  // of both, counted from 1

    explicit TwoCubes(double first)
    {
        for (int k = 0; k < 2; ++k)
            for (int j = 0; j < 2; ++j)
                for (int i = 0; i < 3; ++i) {
                    x.push_back(first + i);
                    y.push_back(j);
                    z.push_back(k);
                }
        for (const int p : {1, 2}) corners.insert(corners.end(), {p, p + 1, p + 4, p + 3, p + 6, p + 7, p + 10, p + 9});
    }
};

double sum_of_coordinates(const Mesh& mesh, std::int64_t point)
{
    return mesh.points.value(point, 0) + 10 * mesh.points.value(point, 1) + 100 * mesh.points.value(point, 2);
}

class CgnsFile {
public:
    explicit CgnsFile(const std::filesystem::path& path)
    {
        cg_open(path.c_str(), CG_MODE_WRITE, &file_);
        cg_base_write(file_, "Base", 3, 3, &base_);
        int family = 0;
        cg_family_write(file_, base_, "walls", &family);
    }
    ~CgnsFile() { cg_close(file_); }

    /// The two cubes with a patch at their first face, a field on points and one on cells.
    void add_unstructured(const char* name, double first)
    {
        const TwoCubes cubes(first);
        cgsize_t size[] = {12, 2, 0};
        cg_zone_write(file_, base_, name, size, CGNS_ENUMV(Unstructured), &zone_);
        add_coordinates(cubes.x, cubes.y, cubes.z);
        int number = 0;
        const std::vector<cgsize_t> corners(cubes.corners.begin(), cubes.corners.end()), face{1, 7, 10, 4};
        cg_section_write(file_, base_, zone_, "cells", CGNS_ENUMV(HEXA_8), 1, 2, 0, corners.data(), &number);
        cg_section_write(file_, base_, zone_, "faces", CGNS_ENUMV(QUAD_4), 3, 3, 0, face.data(), &number);
        const cgsize_t range[] = {3, 3};
        cg_boco_write(file_, base_, zone_, "inlet", CGNS_ENUMV(FamilySpecified), CGNS_ENUMV(PointRange), 2, range,
                      &number);
        cg_boco_gridlocation_write(file_, base_, zone_, number, CGNS_ENUMV(FaceCenter));
        cg_goto(file_, base_, "Zone_t", zone_, "ZoneBC_t", 1, "BC_t", number, "end");
        cg_famname_write("walls");
        cg_boco_write(file_, base_, zone_, "outlet", CGNS_ENUMV(BCOutflow), CGNS_ENUMV(PointRange), 2, range, &number);
        add_fields("Solution", cubes.x, cubes.y, cubes.z, 2);
    }

    /// A structured block of 2 x 1 x 1 cells.
    void add_structured(const char* name, double first)
    {
        const TwoCubes cubes(first);
        cgsize_t size[] = {3, 2, 2, 2, 1, 1, 0, 0, 0};
        cg_zone_write(file_, base_, name, size, CGNS_ENUMV(Structured), &zone_);
        add_coordinates(cubes.x, cubes.y, cubes.z);
        add_fields("Solution", cubes.x, cubes.y, cubes.z, 2);
    }

    /// One cube by its faces.
    void add_polyhedron(const char* name)
    {
        cgsize_t size[] = {8, 1, 0};
        cg_zone_write(file_, base_, name, size, CGNS_ENUMV(Unstructured), &zone_);
        std::vector<double> x, y, z;
        for (int i = 0; i < 8; ++i) {
            x.push_back(i & 1);
            y.push_back(i >> 1 & 1);
            z.push_back(i >> 2);
        }
        add_coordinates(x, y, z);
        const cgsize_t faces[] = {1, 3, 4, 2, 5, 6, 8, 7, 1, 2, 6, 5, 2, 4, 8, 6, 4, 3, 7, 8, 3, 1, 5, 7},
                       ends[] = {0, 4, 8, 12, 16, 20, 24};
        const cgsize_t sides[] = {1, 2, 3, 4, 5, 6}, side_ends[] = {0, 6};
        int number = 0;
        cg_poly_section_write(file_, base_, zone_, "faces", CGNS_ENUMV(NGON_n), 1, 6, 0, faces, ends, &number);
        cg_poly_section_write(file_, base_, zone_, "cells", CGNS_ENUMV(NFACE_n), 7, 7, 0, sides, side_ends, &number);
    }

private:
    void add_coordinates(const std::vector<double>& x, const std::vector<double>& y, const std::vector<double>& z)
    {
        int number = 0;
        const std::pair<const char*, const std::vector<double>&> axes[] = {
            {"CoordinateX", x}, {"CoordinateY", y}, {"CoordinateZ", z}};
        for (const auto& [name, values] : axes)
            cg_coord_write(file_, base_, zone_, CGNS_ENUMV(RealDouble), name, values.data(), &number);
    }

    void add_fields(const std::string& name, const std::vector<double>& x, const std::vector<double>& y,
                    const std::vector<double>& z, int num_cells)
    {
        std::vector<double> values, on_cells;
        for (std::size_t i = 0; i < x.size(); ++i) values.push_back(x[i] + 10 * y[i] + 100 * z[i]);
        for (int i = 0; i < num_cells; ++i) on_cells.push_back(300 + i);
        int solution = 0, number = 0;
        cg_sol_write(file_, base_, zone_, (name + "Points").c_str(), CGNS_ENUMV(Vertex), &solution);
        cg_field_write(file_, base_, zone_, solution, CGNS_ENUMV(RealDouble), "Pressure", values.data(), &number);
        cg_sol_write(file_, base_, zone_, (name + "Cells").c_str(), CGNS_ENUMV(CellCenter), &solution);
        cg_field_write(file_, base_, zone_, solution, CGNS_ENUMV(RealDouble), "Temperature", on_cells.data(), &number);
    }

    int file_ = 0, base_ = 0, zone_ = 0;
};

TEST(InterchangeFiles, OfCgnsKeepZonesPatchesAndFields)
{
    const TemporaryFolder folder;
    {
        CgnsFile file(folder / "a.cgns");
        file.add_unstructured("fluid", 0);
        file.add_structured("block", 5);
    }

    std::vector<std::string> warnings;
    ReadOptions options;
    options.warnings = &warnings;
    const Mesh mesh = read_mesh(folder / "a.cgns", options);

    mesh.validate();
    EXPECT_EQ(mesh.cell_types, std::vector<std::uint8_t>(4, 12));
    ASSERT_EQ(mesh.num_points(), 24);
    for (std::int64_t i = 0; i < 24; ++i)
        EXPECT_EQ(require_array(mesh.point_data, "Pressure", "", "point").value(i), sum_of_coordinates(mesh, i));
    for (std::int64_t i = 0; i < 4; ++i)
        EXPECT_EQ(require_array(mesh.cell_data, "Temperature", "", "cell").value(i), 300 + static_cast<double>(i % 2));
    EXPECT_EQ(require_array(mesh.cell_data, "BlockId", "", "cell").to_doubles(), (std::vector<double>{0, 0, 1, 1}));
    const auto names = require_array(mesh.field_data, "BlockName", "", "field").strings();
    EXPECT_NE(names[0].find("fluid"), std::string::npos) << names[0];
    EXPECT_NE(names[1].find("block"), std::string::npos) << names[1];

    // Patches without a family VTK leaves out.
    EXPECT_TRUE(std::ranges::any_of(
        warnings, [](const std::string& text) { return text.find("BCOutflow") != std::string::npos; }));
    options.blocks = {"Base/fluid/Patches/inlet"};
    const Mesh patch = read_mesh(folder / "a.cgns", options);
    ASSERT_EQ(patch.num_cells(), 1);
    for (const std::int32_t point : patch.cells.row(0)) EXPECT_EQ(patch.points.value(point, 0), 0);

    write_mesh(folder / "a.vtu", mesh);
    EXPECT_EQ(difference(read_mesh(folder / "a.vtu"), mesh), "");
}

TEST(InterchangeFiles, OfCgnsHoldPolyhedra)
{
    const TemporaryFolder folder;
    CgnsFile(folder / "a.cgns").add_polyhedron("cube");

    const Mesh mesh = read_mesh(folder / "a.cgns");

    mesh.validate();
    ASSERT_EQ(mesh.cell_types, std::vector<std::uint8_t>{42});
    EXPECT_EQ(mesh.face_streams.row(0)[0], 6);
    EXPECT_EQ(mesh.cells.row(0).size(), 8u);
}

/// Blocks `core` (a cube) and `tail` (the next one), a side set `inlet`, and two times.
void write_exodus(const std::filesystem::path& path, double first = 0)
{
    const TwoCubes cubes(first);
    int word = 8, stored = 8;
    const int file = ex_create(path.c_str(), EX_CLOBBER, &word, &stored);
    ex_put_init(file, "two cubes", 3, 12, 2, 2, 0, 1);
    ex_put_coord(file, cubes.x.data(), cubes.y.data(), cubes.z.data());
    for (const int block : {0, 1}) {
        ex_put_block(file, EX_ELEM_BLOCK, 10 + block, "HEX8", 1, 8, 0, 0, 0);
        ex_put_conn(file, EX_ELEM_BLOCK, 10 + block, cubes.corners.data() + 8 * block, nullptr, nullptr);
        ex_put_name(file, EX_ELEM_BLOCK, 10 + block, block == 0 ? "core" : "tail");
    }
    const int element = 1, side = 4;  // x = 0
    ex_put_set_param(file, EX_SIDE_SET, 7, 1, 0);
    ex_put_set(file, EX_SIDE_SET, 7, &element, &side);
    ex_put_name(file, EX_SIDE_SET, 7, "inlet");
    char p[] = "p", q[] = "q";
    char *points[] = {p}, *cells[] = {q};
    ex_put_variable_param(file, EX_NODAL, 1);
    ex_put_variable_names(file, EX_NODAL, 1, points);
    ex_put_variable_param(file, EX_ELEM_BLOCK, 1);
    ex_put_variable_names(file, EX_ELEM_BLOCK, 1, cells);
    for (const int step : {1, 2}) {
        const double time = 0.5 * step;
        ex_put_time(file, step, &time);
        std::vector<double> values;
        for (std::size_t i = 0; i < 12; ++i) values.push_back(time * (cubes.x[i] + 10 * cubes.y[i] + 100 * cubes.z[i]));
        ex_put_var(file, step, EX_NODAL, 1, 1, 12, values.data());
        for (const int block : {0, 1}) {
            const double value = 7 * step + block;
            ex_put_var(file, step, EX_ELEM_BLOCK, 1, 10 + block, 1, &value);
        }
    }
    ex_close(file);
}

TEST(InterchangeFiles, OfExodusHaveTheSameBytesEachTimeInTheirRecords)
{
    const TemporaryFolder folder;
    write_exodus(folder / "a.exo");
    float version = 0;
    int word = 8, stored = 8;
    const int file = ex_open((folder / "a.exo").c_str(), EX_WRITE, &word, &stored, &version);
    ASSERT_GE(file, 0);
    char code[MAX_STR_LENGTH + 1] = "meshard", release[MAX_STR_LENGTH + 1] = "1", date[MAX_STR_LENGTH + 1] = "today",
                               hour[MAX_STR_LENGTH + 1] = "";
    char* records[1][4] = {{code, release, date, hour}};
    EXPECT_EQ(ex_put_qa(file, 1, records), 0);
    char line[MAX_LINE_LENGTH + 1] = "a line", last[MAX_LINE_LENGTH + 1] = "";
    char* lines[] = {line, last};
    EXPECT_EQ(ex_put_info(file, 2, lines), 0);
    ex_close(file);

    // New memory holds other bytes each time.
    std::vector<Mesh> read;
    for (const int filler : {0x11, 0x77}) {
        mallopt(M_PERTURB, filler);
        read.push_back(read_mesh(folder / "a.exo"));
    }
    mallopt(M_PERTURB, 0);

    EXPECT_EQ(difference(read[0], read[1]), "");
    const auto text_of = [&](const char* name, std::int64_t row) {
        const DataArray& array = require_array(read[0].field_data, name, "", "field");
        std::string text;
        for (int c = 0; c < array.num_components() && array.value(row, c) != 0; ++c)
            text += static_cast<char>(array.value(row, c));
        return text;
    };
    EXPECT_EQ(text_of("QA_Records", 0), "meshard");
    EXPECT_EQ(text_of("QA_Records", 2), "today");
    EXPECT_EQ(text_of("Info_Records", 0), "a line");
}

TEST(InterchangeFiles, OfExodusKeepCoordinatesInDoublePrecision)
{
    const TemporaryFolder folder;
    write_exodus(folder / "a.exo", 1e6 + 0.01);
    ReadOptions options;
    options.blocks = {"Element Blocks"};

    const Mesh mesh = read_mesh(folder / "a.exo", options);

    EXPECT_EQ(mesh.num_points(), 16);  // eight of each block
    for (std::int64_t i = 0; i < mesh.num_points(); ++i) {
        EXPECT_EQ(mesh.points.value(i, 0), 1e6 + 0.01 + std::round(mesh.points.value(i, 0) - 1e6));
        EXPECT_EQ(require_array(mesh.point_data, "p", "", "point").value(i), sum_of_coordinates(mesh, i));
    }
}

TEST(InterchangeFiles, OfExodusKeepBlocksSideSetsAndTimes)
{
    const TemporaryFolder folder;
    write_exodus(folder / "a.exo");

    const Mesh mesh = read_mesh(folder / "a.exo");

    mesh.validate();
    EXPECT_EQ(mesh.cell_types, std::vector<std::uint8_t>(2, 12));
    EXPECT_EQ(require_array(mesh.field_data, "TimeValue", "", "field").value(0), 1);
    for (std::int64_t i = 0; i < mesh.num_points(); ++i)
        EXPECT_EQ(require_array(mesh.point_data, "p", "", "point").value(i), sum_of_coordinates(mesh, i));
    EXPECT_EQ(require_array(mesh.cell_data, "q", "", "cell").to_doubles(), (std::vector<double>{14, 15}));
    const auto names = require_array(mesh.field_data, "BlockName", "", "field").strings();
    EXPECT_NE(names[0].find("core"), std::string::npos) << names[0];
    EXPECT_NE(names[1].find("tail"), std::string::npos) << names[1];

    ReadOptions options;
    options.time = 0.5;
    EXPECT_EQ(require_array(read_mesh(folder / "a.exo", options).cell_data, "q", "", "cell").value(1), 8);
    const auto states = read_series(folder / "a.exo");
    ASSERT_EQ(states.size(), 2);
    EXPECT_EQ(states[0].time, 0.5);
    EXPECT_EQ(states[0].time_in_file, 0.5);
    EXPECT_EQ(states[1].time, 1);
    options.time.reset();
    options.blocks = {"Side Sets"};
    const Mesh inlet = read_mesh(folder / "a.exo", options);
    ASSERT_EQ(inlet.num_cells(), 1);
    EXPECT_EQ(cell_dimension(inlet.cell_types[0]), 2);
    for (const std::int32_t point : inlet.cells.row(0)) EXPECT_EQ(inlet.points.value(point, 0), 0);
}

TEST(InterchangeFiles, OfEnSightKeepPartsAndFields)
{
    const TemporaryFolder folder;
    const TwoCubes cubes(0);
    vtkNew<vtkUnstructuredGrid> grid;
    vtkNew<vtkPoints> points;
    vtkNew<vtkDoubleArray> pressure, quality;
    vtkNew<vtkIntArray> part;
    pressure->SetName("pressure");
    quality->SetName("quality");
    part->SetName("BlockId");
    for (std::size_t i = 0; i < 12; ++i) {
        points->InsertNextPoint(cubes.x[i], cubes.y[i], cubes.z[i]);
        pressure->InsertNextValue(cubes.x[i] + 10 * cubes.y[i] + 100 * cubes.z[i]);
    }
    grid->SetPoints(points);
    for (int cell = 0; cell < 2; ++cell) {
        std::vector<vtkIdType> corners;
        for (int k = 0; k < 8; ++k) corners.push_back(cubes.corners[static_cast<std::size_t>(8 * cell + k)] - 1);
        grid->InsertNextCell(VTK_HEXAHEDRON, 8, corners.data());
        quality->InsertNextValue(7 + cell);
        part->InsertNextValue(cell + 1);
    }
    grid->GetPointData()->AddArray(pressure);
    grid->GetCellData()->AddArray(quality);
    grid->GetCellData()->AddArray(part);
    {
        vtkNew<vtkEnSightWriter> writer;
        writer->SetInputData(grid);
        writer->SetPath(folder.path().c_str());
        writer->SetBaseName("run");
        int parts[] = {1, 2};
        writer->SetNumberOfBlocks(2);
        writer->SetBlockIDs(parts);
        writer->Write();
        writer->WriteCaseFile(1);
    }
    std::fflush(nullptr);  // VTK leaves the case file open

    const Mesh mesh = read_mesh(folder / "run.0.case");

    mesh.validate();
    EXPECT_EQ(mesh.cell_types, std::vector<std::uint8_t>(2, 12));
    const DataArray* found = nullptr;
    for (const DataArray& array : mesh.point_data)
        if (array.name().find("pressure") != std::string::npos) found = &array;
    ASSERT_NE(found, nullptr);
    for (std::int64_t i = 0; i < mesh.num_points(); ++i) EXPECT_EQ(found->value(i), sum_of_coordinates(mesh, i));
    EXPECT_EQ(require_array(mesh.field_data, "BlockName", "", "field").num_rows(), 2);
}

}  // namespace
}  // namespace meshard
