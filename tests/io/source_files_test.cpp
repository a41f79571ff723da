// SPDX-License-Identifier: Apache-2.0
#include "io/mesh_io.h"
#include "io/source_files.h"
#include "partition/error.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace meshard {
namespace {

class SourceFiles : public testing::Test {
protected:
    void write(const std::string& name, const std::string& text = "x") const
    {
        std::filesystem::create_directories((folder_ / name).parent_path());
        write_bytes(folder_ / name, text);
    }
    /// Relative to the test's folder.
    std::vector<std::string> files(const std::string& source) const
    {
        std::vector<std::string> names;
        for (const auto& file : source_files(folder_ / source))
            names.push_back(file.lexically_relative(folder_.path()).string());
        return names;
    }

    const TemporaryFolder folder_;
};

using Names = std::vector<std::string>;

TEST_F(SourceFiles, AreTheFileItselfWhereItNamesNoOthers)
{
    write_mesh(folder_ / "a.vtp", sphere(4));
    write("b.stl", "solid \"a.vtp\"");

    EXPECT_EQ(files("a.vtp"), Names{"a.vtp"});
    EXPECT_EQ(files("b.stl"), Names{"b.stl"});
}

TEST_F(SourceFiles, AreThePiecesOfAnIndexAndTheMembersOfACollection)
{
    write_mesh(folder_ / "wing.pvtu", cube(3));
    auto pieces = files("wing.pvtu");
    ASSERT_EQ(pieces.size(), 2U);
    EXPECT_TRUE(std::ranges::find(pieces, "wing.pvtu") != pieces.end());

    write("all.vtm", R"(<VTKFile type="vtkMultiBlockDataSet"><vtkMultiBlockDataSet><DataSet name="a" file="wing.pvtu"/>
                        <DataSet file="my body.vtp"/><DataSet file="all.vtm"/></vtkMultiBlockDataSet></VTKFile>)");
    write("my body.vtp");
    pieces.insert(pieces.end(), {"all.vtm", "my body.vtp"});
    std::ranges::sort(pieces);
    EXPECT_EQ(files("all.vtm"), pieces);

    write("grid.pvtr",
          R"(<VTKFile><PRectilinearGrid><Piece Source="a.vtr"/><Piece Source="b.vtr"/></PRectilinearGrid></VTKFile>)");
    write("a.vtr");
    write("b.vtr");
    EXPECT_EQ(files("grid.pvtr"), (Names{"a.vtr", "b.vtr", "grid.pvtr"}));

    write("times.pvd.series", R"({"files": [{"name": "all.vtm", "time": 0}, {"name": "absent.vtp", "time": 1}]})");
    pieces.insert(std::ranges::find(pieces, "wing.pvtu"), "times.pvd.series");
    EXPECT_EQ(files("times.pvd.series"), pieces);
}

TEST_F(SourceFiles, AreWhatAnEnsightCaseNames)
{
    write("run.case",
          "FORMAT\ntype: ensight gold\nGEOMETRY\nmodel: run.geo\nVARIABLE\nscalar per node: 1 p run.p***\n");
    for (const char* name : {"run.geo", "run.p000", "run.p001", "run.p0001", "other.geo"}) write(name);

    EXPECT_EQ(files("run.case"), (Names{"run.case", "run.geo", "run.p000", "run.p001"}));
}

TEST_F(SourceFiles, OfAnEnsightCaseMayLieInFoldersWhoseNamesMeanSomethingToAShell)
{
    for (const std::string name : {"runs [a]", "b?", "c*", "d\\e", "~", "{f,g}"}) {
        write(
            name + "/run.case",
            "FORMAT\ntype: ensight gold\nGEOMETRY\nmodel: sub[1]/run.geo**\nVARIABLE\nscalar per node: 1 p run?.p**\n");
        for (const char* file : {"sub[1]/run.geo00", "run?.p01", "runs.p01", "run?.p1"}) write(name + "/" + file);

        EXPECT_EQ(files(name + "/run.case"),
                  (Names{name + "/run.case", name + "/run?.p01", name + "/sub[1]/run.geo00"}));
    }
}

TEST_F(SourceFiles, MayBeNamedAsXmlNamesThem)
{
    write(
        "all.vtm",
        R"(<VTKFile type="vtkMultiBlockDataSet"><vtkMultiBlockDataSet><DataSet file='a.vtp'/><DataSet file="b &amp; &#99;.vtp"/>
                        <DataSet file="d's.vtp"/></vtkMultiBlockDataSet></VTKFile>)");
    for (const char* name : {"a.vtp", "b & c.vtp", "d's.vtp"}) write(name);

    EXPECT_EQ(files("all.vtm"), (Names{"a.vtp", "all.vtm", "b & c.vtp", "d's.vtp"}));
}

TEST_F(SourceFiles, AreTheMeshesOfAnOpenFoamCaseAndItsLatestFields)
{
    for (const char* name : {"case/a.foam", "case/system/controlDict", "case/constant/polyMesh/points", "case/0/U",
                             "case/0.5/U", "case/0.5/polyMesh/points", "case/10/U", "case/2/U", "case/processor0/10/U",
                             "case/processor0/9/U", "case/processor0/constant/polyMesh/faces"})
        write(name);

    const Names expected{"case/0.5/polyMesh/points",
                         "case/10/U",
                         "case/a.foam",
                         "case/constant/polyMesh/points",
                         "case/processor0/10/U",
                         "case/processor0/constant/polyMesh/faces",
                         "case/system/controlDict"};
    EXPECT_EQ(files("case"), expected);
    EXPECT_EQ(files("case/a.foam"), expected);
}

TEST_F(SourceFiles, NeedASource)
{
    EXPECT_THROW(files("absent.vtp"), IoError);
    std::filesystem::create_directory(folder_ / "empty");
    EXPECT_THROW(files("empty"), IoError);
}

}  // namespace
}  // namespace meshard
