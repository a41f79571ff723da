// SPDX-License-Identifier: Apache-2.0
// Damaged files, cut as a whole and in windows: a sentence and exit code 3; suspicious ones that can be used: a
// warning, and nothing is lost.
#include "io/vtk/vtk_xml_writer.h"
#include "tests/apps/program_test.h"
#include "tests/support/sample_meshes.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace meshard {
namespace {

class DamagedInput : public ProgramTest, public testing::WithParamInterface<bool> {
protected:
    std::vector<std::string> partition(const std::string& file) const
    {
        std::vector<std::string> words{"partition", file, "-n", "2", "-o", path("shards")};
        if (GetParam()) words.insert(words.end(), {"--max-memory", "300M"});
        return words;
    }

    void expect_refused(const std::string& file, const std::string& message) const
    {
        EXPECT_TRUE(fails_with(meshard(partition(file)), 3, {message})) << file;
        for (const std::string& name : entries()) EXPECT_FALSE(name.starts_with("shards")) << file << " left " << name;
    }

    void expect_used(const std::string& file, const std::string& warning) const
    {
        const ProgramResult result = meshard(partition(file));

        EXPECT_EQ(result.exit_code, 0) << result.err;
        EXPECT_NE(result.err.find("warning: "), std::string::npos) << result.err;
        EXPECT_NE(result.err.find(warning), std::string::npos) << result.err;
        EXPECT_EQ(meshard({"check", path("shards")}).exit_code, 0) << file;
        EXPECT_EQ(meshard({"merge", path("shards"), "--verify", file}).exit_code, 0) << file;
        std::filesystem::remove_all(path("shards"));
    }

    /// 27 hexahedra whose numbers are not those of their places along a curve.
    std::string whole() const { return content_of(write("whole.vtu", cube(3))); }

    static std::string replaced(std::string bytes, const std::string& what, const std::string& by)
    {
        const auto at = bytes.find(what);
        EXPECT_NE(at, std::string::npos);
        return bytes.replace(at, what.size(), by);
    }

    static std::string words(const std::vector<std::int32_t>& values)
    {
        return {reinterpret_cast<const char*>(values.data()), 4 * values.size()};
    }
};

TEST_P(DamagedInput, IsRefusedWhereverItIsCut)
{
    const std::string bytes = whole();
    for (int i = 0; i < 12; ++i) {
        const std::string name = "cut" + std::to_string(i) + ".vtu";
        expect_refused(write_text(name, bytes.substr(0, bytes.size() * i / 12)), name);
    }
}

TEST_P(DamagedInput, IsRefusedForCountsAndOffsetsThatDoNotFit)
{
    const std::string bytes = whole();
    expect_refused(write_text("points.vtu", replaced(bytes, "NumberOfPoints=\"64\"", "NumberOfPoints=\"65\"")),
                   "points.vtu");
    expect_refused(write_text("cells.vtu", replaced(bytes, "NumberOfCells=\"27\"", "NumberOfCells=\"28\"")),
                   "cells.vtu");
    expect_refused(write_text("huge.vtu", replaced(bytes, "NumberOfCells=\"27\"", "NumberOfCells=\"99999999999\"")),
                   "huge.vtu");
    expect_refused(write_text("offset.vtu", replaced(bytes, words({8, 16, 24}), words({8, std::int32_t{1} << 30, 24}))),
                   "offset.vtu");
    expect_refused(write_text("back.vtu", replaced(bytes, words({16, 24, 32}), words({16, 8, 32}))), "back.vtu");
    Mesh mesh = cube(3);
    mesh.cells.indices[8 * 5 + 3] = 6400;
    write_vtk_xml(path("index.vtu"), mesh, mesh.kind, {});
    expect_refused(path("index.vtu"), "uses point 6400, expected 0 to 63");
}

TEST_P(DamagedInput, NamesTheCellByItsNumberInTheFile)
{
    const std::string types(27, '\14');  // hexahedra
    std::string other = types;
    other[17] = 14;
    expect_refused(write_text("pyramid.vtu", replaced(whole(), types, other)),
                   "cell 17 (pyramid) has 8 points, expected 5");
    other[17] = 120;
    expect_refused(write_text("unknown.vtu", replaced(whole(), types, other)),
                   "cell 17 has type 120, which VTK does not know");
    other[17] = 55;
    expect_refused(write_text("parametric.vtu", replaced(whole(), types, other)), "cell 17 (");
}

TEST_P(DamagedInput, IsRefusedForCoordinatesThatAreNoNumbers)
{
    for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
        Mesh mesh = cube(3);
        mesh.points.mutable_values<double>()[7] = bad;
        expect_refused(write("nan.vtu", mesh), "1 coordinate that is NaN or infinite");
    }
}

TEST_P(DamagedInput, IsRefusedWithoutCells)
{
    expect_refused(write("empty.vtu", empty_mesh()), "has no cells");
}

TEST_P(DamagedInput, IsUsedWithAWarning)
{
    Mesh inverted = tet_cube(2);
    std::swap(inverted.cells.indices[4 * 13], inverted.cells.indices[4 * 13 + 1]);
    expect_used(write("inverted.vtu", inverted), "1 cell (number 13) of negative volume");

    Mesh twice = tet_cube(2);
    std::copy_n(twice.cells.indices.begin() + 4 * 20, 4, twice.cells.indices.begin() + 4 * 31);
    expect_used(write("twice.vtu", twice), "1 cell (number 31) of the same type on the same points");

    expect_used(write("unused.vtp", with_unused_points()), "5 points are used by no cell");

    Mesh fan = two_triangles();  // a third triangle at the edge of both
    fan.cell_data.clear();
    fan.cells.push_row(std::vector<std::int32_t>{0, 2, 1});
    fan.cells.push_row(std::vector<std::int32_t>{2, 0, 3});
    fan.cell_types.insert(fan.cell_types.end(), 2, fan.cell_types[0]);
    const ProgramResult result = meshard(partition(write("fan.vtp", fan)));
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_NE(result.err.find("belongs to three cells or more"), std::string::npos) << result.err;

    Mesh field = strip(8);
    std::filesystem::remove_all(path("shards"));
    field.cell_data.push_back(DataArray::from("p", std::vector<double>{1, NAN, 3, 4, NAN, 6, 7, 8}));
    expect_used(write("field.vtp", field), "cell array 'p' has 2 NaN");
}

INSTANTIATE_TEST_SUITE_P(All, DamagedInput, testing::Bool(),
                         [](const auto& info) { return info.param ? "InWindows" : "Whole"; });

class DamagedCollection : public ProgramTest {};

TEST_F(DamagedCollection, IsRefusedIfItContainsItself)
{
    const std::string file =
        write_text("ring.vtm", "<VTKFile type=\"vtkMultiBlockDataSet\"><vtkMultiBlockDataSet><DataSet index=\"0\" "
                               "file=\"ring.vtm\"/></vtkMultiBlockDataSet></VTKFile>");

    EXPECT_TRUE(fails_with(meshard({"partition", file, "-n", "2", "-o", path("shards")}), 3, {"ring.vtm"}));
    EXPECT_EQ(entries(), std::vector<std::string>{"ring.vtm"});
}

}  // namespace
}  // namespace meshard
