// SPDX-License-Identifier: Apache-2.0
#include "io/mesh_io.h"
#include "io/shards/subdomain_io.h"
#include "io/vtk/vtk_parallel_reader.h"
#include "partition/cut/metis_partitioner.h"
#include "partition/error.h"
#include "partition/mesh/mesh_graph.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

namespace meshard {
namespace {

std::string index_of(const std::string& type, const std::vector<std::string>& sources)
{
    std::string text = "<VTKFile type=\"" + type + "\"><" + type + ">";
    for (const auto& source : sources) text += "<Piece Source=\"" + source + "\"/>";
    return text + "</" + type + "></VTKFile>";
}

TEST(VtkParallelReader, PutsShardsTogetherInTheSourcesOrder)
{
    for (const auto& [name, mesh] : sample_meshes())
        for (const std::int32_t num_parts : {1, 4}) {
            const TemporaryFolder folder;
            const Csr graph = mesh_graph(mesh);
            save_subdomains(folder / "shards",
                            extract_subdomains(mesh, graph, partition_with_metis(graph, {.num_parts = num_parts}), 2),
                            {});

            Mesh merged = read_mesh(folder / "shards" / index_name(mesh.kind));

            // Beside the source's arrays there are the ids and owners.
            const auto drop = [](const DataArray& array) {
                return array.name() == "GlobalCellIds" || array.name() == "GlobalPointIds" ||
                       array.name() == "PartitionId" || array.name() == "GhostLevel";
            };
            EXPECT_EQ(std::erase_if(merged.point_data, drop), mesh.is_point_cloud() ? 3U : 2U) << name;
            EXPECT_EQ(std::erase_if(merged.cell_data, drop), mesh.is_point_cloud() ? 0U : 3U) << name;
            EXPECT_EQ(difference(merged, mesh), "") << name;
        }
}

TEST(VtkParallelReader, AppendsPiecesWithoutIds)
{
    const TemporaryFolder folder;
    write_mesh(folder / "a.vtu", mixed_cells());
    write_mesh(folder / "b.vtu", mixed_cells());
    write_bytes(folder / "all.pvtu", index_of("PUnstructuredGrid", {"a.vtu", "b.vtu"}));

    const Mesh one = mixed_cells(), both = read_mesh(folder / "all.pvtu");

    EXPECT_NO_THROW(both.validate());
    EXPECT_EQ(both.num_cells(), 2 * one.num_cells());
    EXPECT_EQ(both.num_points(), 2 * one.num_points());
    EXPECT_EQ(both.cells.row(one.num_cells())[0], one.cells.row(0)[0] + one.num_points());
    EXPECT_EQ(both.face_streams.row(one.num_cells() + 4)[2], one.face_streams.row(4)[2] + one.num_points());
    EXPECT_EQ(both.face_streams.row(one.num_cells() + 4)[1], one.face_streams.row(4)[1]);
    EXPECT_EQ(both.point_data[1].component_names, one.point_data[1].component_names);
}

TEST(VtkParallelReader, DropsGhostsWithoutIds)
{
    const TemporaryFolder folder;
    Mesh left = strip(2), right = strip(2);
    left.cell_data.push_back(DataArray::from("vtkGhostType", std::vector<std::uint8_t>{0, 1}));
    right.cell_data.push_back(
        DataArray::from("vtkGhostType", std::vector<std::uint8_t>{0, 32}));  // 32: hidden, no duplicate
    write_mesh(folder / "a.vtp", left);
    write_mesh(folder / "b.vtp", right);
    write_bytes(folder / "all.pvtp", index_of("PPolyData", {"a.vtp", "b.vtp"}));

    const Mesh both = read_mesh(folder / "all.pvtp");

    EXPECT_EQ(both.num_cells(), 3);
    EXPECT_EQ(require_array(both.cell_data, "vtkGhostType", "", "cell").to_doubles(), (std::vector<double>{0, 0, 32}));
}

TEST(VtkParallelReader, LeavesArraysOutOfEmptyPieces)
{
    const TemporaryFolder folder;
    Mesh bare;
    bare.kind = MeshKind::Surface;
    write_mesh(folder / "a.vtp", bare);
    write_mesh(folder / "b.vtp", two_triangles());
    write_bytes(folder / "all.pvtp", index_of("PPolyData", {"a.vtp", "b.vtp"}));

    const Mesh mesh = read_mesh(folder / "all.pvtp");

    EXPECT_EQ(mesh.num_cells(), 2);
    EXPECT_EQ(mesh.cell_data.size(), two_triangles().cell_data.size());
}

TEST(VtkParallelWriter, LeavesWhatWasThereIfTheNewFilesCannotBeWritten)
{
    const TemporaryFolder folder;
    write_mesh(folder / "a.pvtp", two_triangles());
    const auto before = folder.size();

    EXPECT_THROW(write_mesh(folder / "a.pvtp", tet_cube(1)), InvalidInput);

    EXPECT_EQ(read_mesh(folder / "a.pvtp").num_cells(), 2);
    EXPECT_EQ(folder.size(), before);
    write_mesh(folder / "a.pvtp", strip(3));
    EXPECT_EQ(read_mesh(folder / "a.pvtp").num_cells(), 3);
    EXPECT_EQ(folder.size(), before);
}

TEST(VtkParallelReader, SaysWhatIsWrong)
{
    const TemporaryFolder folder;
    Mesh other = two_triangles();
    other.cell_data.pop_back();
    write_mesh(folder / "a.vtp", two_triangles());
    write_mesh(folder / "b.vtp", other);
    write_mesh(folder / "c.vtu", cube(1));
    Mesh with_ids = two_triangles();
    with_ids.cell_data.push_back(DataArray::from("GlobalCellIds", std::vector<std::int64_t>{3, 3}));
    write_mesh(folder / "d.vtp", with_ids);
    Mesh in_double = two_triangles();
    in_double.points = DataArray::from("Points", in_double.points.to_doubles(), 3);
    write_mesh(folder / "e.vtp", in_double);
    const auto read = [&](const std::string& type, const std::vector<std::string>& sources) {
        write_bytes(folder / "all.pvtp", index_of(type, sources));
        return [&folder] { read_mesh(folder / "all.pvtp"); };
    };

    EXPECT_TRUE(throws_with<IoError>("gone.vtp does not exist", read("PPolyData", {"a.vtp", "gone.vtp"})));
    EXPECT_TRUE(throws_with<IoError>("only some have the cell array 'label'", read("PPolyData", {"a.vtp", "b.vtp"})));
    EXPECT_TRUE(throws_with<IoError>("piece 'c.vtu' is no .vtp file", read("PPolyData", {"c.vtu"})));
    EXPECT_TRUE(throws_with<IoError>("in its pieces twice", read("PPolyData", {"d.vtp"})));
    EXPECT_TRUE(
        throws_with<IoError>("some have Float32 points, others Float64", read("PPolyData", {"a.vtp", "e.vtp"})));
    EXPECT_TRUE(throws_with<IoError>("expected a VTKFile of type PUnstructuredGrid or PPolyData",
                                     read("PImageData", {"a.vtp"})));
}

}  // namespace
}  // namespace meshard
