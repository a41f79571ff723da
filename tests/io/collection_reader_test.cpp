// SPDX-License-Identifier: Apache-2.0
#include "io/collection_reader.h"
#include "io/mesh_io.h"
#include "io/series.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

#include <cmath>

namespace meshard {
namespace {

std::string multi_block(const std::string& content)
{
    return "<?xml version=\"1.0\"?>\n<VTKFile type=\"vtkMultiBlockDataSet\" version=\"1.0\" "
           "byte_order=\"LittleEndian\">\n  <vtkMultiBlockDataSet>\n" +
           content +
           "  </vtkMultiBlockDataSet>\n  <FieldData><DataArray type=\"Float32\" Name=\"TimeValue\" "
           "NumberOfTuples=\"1\" format=\"ascii\"> 7 "
           "</DataArray></FieldData>\n</VTKFile>\n";
}

/// What foamToVTK writes: cells and patches.
void write_case(const TemporaryFolder& folder)
{
    std::filesystem::create_directories(folder / "case/boundary");
    Mesh inside = cube(2), left = polygon_surface(), right = two_triangles();
    for (Mesh* mesh : {&inside, &left, &right}) mesh->field_data.clear();
    left.cell_data.push_back(DataArray("shear", ScalarType::Float32, left.num_cells(), 3));
    write_mesh(folder / "case/internal.vtu", inside);
    write_mesh(folder / "case/boundary/left.vtp", left);
    write_mesh(folder / "case/boundary/right.vtp", right);
    write_bytes(folder / "case.vtm",
                multi_block("<DataSet name=\"internal\" file=\"case/internal.vtu\"/>\n<Block name=\"boundary\">\n"
                            "<DataSet name=\"left\" file=\"case/boundary/left.vtp\"/>\n<DataSet name=\"right\" "
                            "file=\"case/boundary/right.vtp\"/>\n"
                            "<DataSet index=\"2\"/></Block>\n"));
}

/// Files a.vtp, b.vtp, c.vtp of two triangles, and all.vtm of blocks that are all called "same".
template <class F>
void write_same(const TemporaryFolder& folder, F&& change)
{
    std::string content;
    for (const char* name : {"a", "b", "c"}) {
        Mesh mesh = two_triangles();
        mesh.cell_data.clear();
        mesh.field_data.clear();
        change(*name, mesh);
        write_mesh(folder / (std::string(name) + ".vtp"), mesh);
        content += "<DataSet name=\"same\" file=\"" + std::string(name) + ".vtp\"/>\n";
    }
    write_bytes(folder / "all.vtm", multi_block(content));
}

TEST(Collections, AreReadThroughALinkFromAnotherFolder)
{
    const TemporaryFolder folder;
    write_case(folder);
    write_bytes(folder / "case.pvd", "<VTKFile type=\"Collection\"><Collection><DataSet timestep=\"2\" "
                                     "file=\"case/internal.vtu\"/></Collection></VTKFile>");
    std::filesystem::create_directories(folder / "links");
    for (const char* name : {"case.vtm", "case.pvd"}) {
        std::filesystem::create_symlink(folder / name, folder / "links" / name);
        EXPECT_EQ(read_mesh(folder / "links" / name).num_cells(), read_mesh(folder / name).num_cells()) << name;
    }
    EXPECT_EQ(read_series(folder / "links/case.pvd").size(), 1U);
}

TEST(Collections, HaveGhostsOnlyWhereABlockHasSome)
{
    const TemporaryFolder folder;
    write_same(folder, [](char name, Mesh& mesh) {
        if (name == 'b') mesh.cell_data.push_back(DataArray::from("vtkGhostType", std::vector<std::uint8_t>{0, 1}));
    });

    EXPECT_EQ(find_array(read_mesh(folder / "all.vtm").cell_data, "vtkGhostType")->to_doubles(),
              (std::vector<double>{0, 0, 0, 1, 0, 0}));
}

TEST(Collections, KeepFieldDataOfBlocksOfOneName)
{
    const TemporaryFolder folder;
    write_same(folder, [](char name, Mesh& mesh) {
        mesh.field_data.push_back(DataArray::from("Re", std::vector<double>{100.0 * (name - 'a')}));
    });

    const Mesh mesh = read_mesh(folder / "all.vtm");

    EXPECT_EQ(find_array(mesh.field_data, "Re")->value(0), 0);
    EXPECT_EQ(find_array(mesh.field_data, "Re of same")->value(0), 100);
    EXPECT_EQ(find_array(mesh.field_data, "Re of same 2")->value(0), 200);
}

TEST(Collections, RefuseNumbersThatTheTypeOfAnotherBlockCannotHold)
{
    const TemporaryFolder folder;
    for (const std::int64_t id : {std::int64_t{1} << 53, (std::int64_t{1} << 53) + 1}) {
        write_same(folder, [&](char name, Mesh& mesh) {
            if (name == 'a')
                mesh.cell_data.push_back(DataArray::from("id", std::vector<double>{0.5, 1}));
            else
                mesh.cell_data.push_back(DataArray::from("id", std::vector<std::int64_t>{1, id}));
        });
        if (id % 2 == 0)
            EXPECT_EQ(find_array(read_mesh(folder / "all.vtm").cell_data, "id")->value(3), 9007199254740992.0);
        else
            EXPECT_TRUE(throws_with<IoError>("'id' holds the Int64 9007199254740993, which is no Float64",
                                             [&] { read_mesh(folder / "all.vtm"); }));
    }
}

TEST(Collections, JoinTheirBlocks)
{
    const TemporaryFolder folder;
    write_case(folder);

    const Mesh mesh = read_mesh(folder / "case.vtm");

    mesh.validate();
    EXPECT_EQ(mesh.kind, MeshKind::Unstructured);
    ASSERT_EQ(mesh.num_cells(), 8 + polygon_surface().num_cells() + 2);
    EXPECT_EQ(find_array(mesh.cell_data, "BlockId")->value(0), 0);
    EXPECT_EQ(find_array(mesh.cell_data, "BlockId")->value(8), 1);
    EXPECT_EQ(find_array(mesh.cell_data, "BlockId")->value(mesh.num_cells() - 1), 2);
    EXPECT_EQ(find_array(mesh.field_data, "BlockName")->strings()[2], "boundary/right");
    EXPECT_EQ(find_array(mesh.field_data, "TimeValue")->value(0), 7);
    EXPECT_TRUE(std::isnan(find_array(mesh.cell_data, "shear")->value(0)));
    EXPECT_EQ(find_array(mesh.cell_data, "shear")->value(8), 0);
    for (std::int64_t i = 0; i < 8; ++i)
        EXPECT_EQ(find_array(mesh.cell_data, "patch")->value(i), find_array(cube(2).cell_data, "patch")->value(i));
}

TEST(Collections, GiveTheBlocksThatAreChosen)
{
    const TemporaryFolder folder;
    write_case(folder);
    std::filesystem::remove(folder / "case/internal.vtu");  // not read
    ReadOptions options;
    options.blocks = {"boundary"};

    const auto blocks = read_blocks(folder / "case.vtm", options);

    ASSERT_EQ(blocks.size(), 2);
    EXPECT_EQ(blocks[0].name, "boundary/left");
    Mesh left = blocks[0].mesh, expected = polygon_surface();
    left.cell_data.pop_back();
    left.field_data.clear();
    expected.field_data.clear();
    EXPECT_EQ(difference(left, expected), "");
    options.blocks = {"boundary/lift"};
    EXPECT_TRUE(
        throws_with<InvalidInput>("Did you mean 'boundary/left'?", [&] { read_mesh(folder / "case.vtm", options); }));
}

TEST(Collections, RefuseCyclesAndWhatIsMissing)
{
    const TemporaryFolder folder;
    write_bytes(folder / "self.vtm", multi_block("<DataSet name=\"a\" file=\"self.vtm\"/>\n"));
    write_bytes(folder / "one.vtm", multi_block("<DataSet name=\"a\" file=\"two.pvd\"/>\n"));
    write_bytes(
        folder / "two.pvd",
        "<VTKFile type=\"Collection\"><Collection><DataSet timestep=\"0\" file=\"./one.vtm\"/></Collection></VTKFile>");
    write_bytes(folder / "lost.vtm", multi_block("<DataSet name=\"a\" file=\"absent.vtu\"/>\n"));
    write_bytes(folder / "none.vtm", "<VTKFile type=\"vtkMultiBlockDataSet\"></VTKFile>");

    EXPECT_TRUE(throws_with<IoError>("names itself", [&] { read_mesh(folder / "self.vtm"); }));
    EXPECT_TRUE(throws_with<IoError>("names itself", [&] { read_mesh(folder / "one.vtm"); }));
    EXPECT_TRUE(throws_with<IoError>("absent.vtu does not exist", [&] { read_mesh(folder / "lost.vtm"); }));
    EXPECT_TRUE(throws_with<IoError>("has no <vtkMultiBlockDataSet>", [&] { read_mesh(folder / "none.vtm"); }));
}

TEST(Collections, AreSeriesInTime)
{
    const TemporaryFolder folder;
    write_mesh(folder / "a.vtp", strip(2));
    write_mesh(folder / "b.vtp", strip(3));
    write_bytes(folder / "run.pvd",
                "<VTKFile type=\"Collection\"><Collection><DataSet timestep=\"2.5\" part=\"0\" file=\"b.vtp\"/>"
                "<DataSet timestep=\"1\" part=\"0\" file=\"a.vtp\"/></Collection></VTKFile>");
    write_bytes(
        folder / "run.vtp.series",
        R"({"file-series-version": "1.0", "files": [{"name": "a.vtp", "time": 1}, {"name": "b.vtp", "time": 2.5}]})");
    for (const char* name : {"run.pvd", "run.vtp.series"}) {
        const Mesh last = read_mesh(folder / name);
        ReadOptions options;
        options.time = 1;
        const Mesh first = read_mesh(folder / name, options);

        EXPECT_EQ(last.num_cells(), 3);
        EXPECT_EQ(find_array(last.field_data, "TimeValue")->value(0), 2.5);
        EXPECT_EQ(first.num_cells(), 2);
        options.time = 3;
        EXPECT_TRUE(throws_with<IoError>("it has no such time", [&] { read_mesh(folder / name, options); }));
    }
    write_bytes(folder / "bad.series", R"({"files": [{"name": "a.vtp"}]})");
    EXPECT_TRUE(
        throws_with<IoError>("entry 0 of 'files' has no name and time", [&] { read_mesh(folder / "bad.series"); }));
    for (const std::string time : {"nan", "inf"}) {
        write_bytes(folder / "bad.pvd",
                    "<VTKFile type=\"Collection\"><Collection><DataSet timestep=\"" + time +
                        "\" file=\"b.vtp\"/><DataSet timestep=\"1\" file=\"a.vtp\"/></Collection></VTKFile>");
        EXPECT_TRUE(throws_with<IoError>("the time of b.vtp is " + time, [&] { read_mesh(folder / "bad.pvd"); }));
    }
}

TEST(Collections, MergePartitions)
{
    const TemporaryFolder folder;
    write_mesh(folder / "a.vtu", cube(2));
    write_mesh(folder / "b.vtu", tet_cube(1));
    write_bytes(folder / "all.vtpc",
                "<VTKFile type=\"vtkPartitionedDataSetCollection\"><vtkPartitionedDataSetCollection>"
                "<Partitions index=\"0\" name=\"solid\"><DataSet index=\"0\" file=\"a.vtu\"/><DataSet index=\"1\" "
                "file=\"b.vtu\"/></Partitions>"
                "<Partitions index=\"1\"><DataSet index=\"0\" "
                "file=\"b.vtu\"/></Partitions></vtkPartitionedDataSetCollection></VTKFile>");
    const auto blocks = read_blocks(folder / "all.vtpc");
    ASSERT_EQ(blocks.size(), 2);
    EXPECT_EQ(blocks[0].name, "solid");
    EXPECT_EQ(blocks[0].mesh.num_cells(), 14);
    EXPECT_EQ(blocks[1].name, "block1");
    EXPECT_EQ(blocks[1].mesh.num_cells(), 6);
}

TEST(Collections, AreRefusedWhenCut)
{
    const TemporaryFolder folder;
    write_case(folder);
    write_bytes(folder / "x.series",
                R"({"file-series-version": "1.0", "files": [{"name": "case/boundary/left.vtp", "time": 1}]})");
    for (const char* name : {"case.vtm", "x.series"}) {
        std::string bytes = read_bytes(folder / name);
        while (bytes.back() == '\n') bytes.pop_back();
        for (std::size_t size = 0; size < bytes.size(); ++size) {
            write_bytes(folder / name, std::string_view(bytes).substr(0, size));
            EXPECT_THROW(read_mesh(folder / name), IoError) << name << " cut at " << size;
        }
    }
}

}  // namespace
}  // namespace meshard
