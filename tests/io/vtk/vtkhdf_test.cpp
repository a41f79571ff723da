// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/hdf5_file.h"
#include "io/bytes/read_warnings.h"
#include "io/mesh_io.h"
#include "io/shards/subdomain_io.h"
#include "io/vtk/vtkhdf.h"
#include "partition/cut/metis_partitioner.h"
#include "partition/error.h"
#include "partition/ghosts/ghost_layer.h"
#include "partition/mesh/mesh_graph.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>
#include <vtkCellData.h>
#include <vtkDataArray.h>
#include <vtkHDFReader.h>
#include <vtkNew.h>
#include <vtkPointData.h>
#include <vtkUnstructuredGrid.h>

#include <cstring>
#include <fstream>
#include <random>

namespace meshard {
namespace {

TEST(VtkHdf, GivesBackWhatWasWritten)
{
    const TemporaryFolder folder;
    for (const auto& [name, mesh] : sample_meshes())
        for (const Compression compression : {Compression::None, Compression::Zlib}) {
            Mesh with_unit = mesh;
            if (!with_unit.point_data.empty()) with_unit.point_data.front().unit = "m/s";
            write_mesh(folder / "mesh.vtkhdf", with_unit, {.compression = compression});
            EXPECT_EQ(difference(read_mesh(folder / "mesh.vtkhdf"), with_unit), "") << name;
        }
}

TEST(VtkHdf, IsReadByVtk)
{
    const TemporaryFolder folder;
    for (const auto& [name, mesh] : sample_meshes()) {
        if (mesh.kind != MeshKind::Unstructured || mesh.has_polyhedra() || mesh.num_cells() == 0)
            continue;  // more than VTK 9.1 knows
        const auto path = folder / (name + ".vtkhdf");
        write_mesh(path, mesh);
        vtkNew<vtkHDFReader> reader;
        reader->SetFileName(path.c_str());
        reader->Update();
        auto* theirs = vtkUnstructuredGrid::SafeDownCast(reader->GetOutputDataObject(0));
        ASSERT_NE(theirs, nullptr) << name;
        ASSERT_EQ(theirs->GetNumberOfCells(), mesh.num_cells()) << name;
        ASSERT_EQ(theirs->GetNumberOfPoints(), mesh.num_points()) << name;
        for (std::int64_t i = 0; i < mesh.num_cells(); ++i) {
            EXPECT_EQ(theirs->GetCellType(i), mesh.cell_types[i]);
            vtkNew<vtkIdList> points;
            theirs->GetCellPoints(i, points);
            EXPECT_TRUE(std::equal(points->begin(), points->end(), mesh.cells.row(i).begin(), mesh.cells.row(i).end()))
                << name << " " << i;
        }
        const auto same = [](vtkDataArray* array, const DataArray& ours) {
            return array != nullptr && array->GetNumberOfTuples() == ours.num_rows() &&
                   array->GetNumberOfComponents() == ours.num_components() &&
                   std::memcmp(array->GetVoidPointer(0), ours.bytes().data(), ours.bytes().size()) == 0;
        };
        EXPECT_TRUE(same(theirs->GetPoints()->GetData(), mesh.points));
        for (const DataArray& array : mesh.point_data)
            EXPECT_TRUE(same(theirs->GetPointData()->GetArray(array.name().c_str()), array))
                << name << " " << array.name();
        for (const DataArray& array : mesh.cell_data)
            EXPECT_TRUE(same(theirs->GetCellData()->GetArray(array.name().c_str()), array))
                << name << " " << array.name();
    }
}

TEST(VtkHdf, HoldsAPartitionForEachPiece)
{
    const TemporaryFolder folder;
    for (const Mesh& mesh : {polyhedral_cube(3), cube(3), sphere(6), surface_of_all_kinds()}) {
        const Csr graph = mesh_graph(mesh);
        const Partition partition = partition_with_metis(graph, {.num_parts = 3});
        const auto parts = extract_subdomains(mesh, partition, ghost_layers(graph, partition, 1), 1);
        std::filesystem::remove_all(folder / "shards");
        save_subdomains(folder / "shards", parts, {});
        std::vector<Mesh> pieces;
        for (const ManifestPart& part : read_manifest(folder / "shards").parts)
            pieces.push_back(read_mesh(folder / "shards" / part.file));

        write_vtkhdf(folder / "all.vtkhdf", pieces, {});

        // Merged by global ids without the ghosts: the mesh before it was cut, beside the arrays that say so.
        Mesh merged = read_mesh(folder / "all.vtkhdf");
        EXPECT_EQ(merged.num_cells(), mesh.num_cells());
        EXPECT_EQ(merged.num_points(), mesh.num_points());
        EXPECT_EQ(merged.cells, mesh.cells);
    }
}

/// A state of a series made of `mesh`: from step 2 on its points lie elsewhere, and arrays hold other values in step 3.
Mesh state_of(const Mesh& mesh, std::size_t step)
{
    Mesh state = mesh;
    const auto with_first_byte_changed = [](DataArray& array) {
        if (!array.bytes().empty()) array.mutable_bytes().front() ^= std::byte{1};
    };
    if (step >= 2) with_first_byte_changed(state.points);
    if (step == 3)
        for (auto* group : {&state.point_data, &state.cell_data})
            for (DataArray& array : *group) with_first_byte_changed(array);
    state.field_data = {DataArray::from("TimeValue", std::vector<double>{0.5 * static_cast<double>(step * step)})};
    return state;
}

TEST(VtkHdf, GivesBackStatesOfASeries)
{
    const TemporaryFolder folder;
    const std::vector<double> times{0, 0.5, 2, 4.5};
    for (auto [name, mesh] : sample_meshes()) {
        const auto path = folder / (name + ".vtkhdf");
        for (auto* group : {&mesh.point_data, &mesh.cell_data})
            std::erase_if(*group, [](const DataArray& array) { return array.type() == ScalarType::String; });

        write_vtkhdf_series(path, times, [&](std::size_t step) { return state_of(mesh, step); });

        EXPECT_EQ(vtkhdf_times(path), times) << name;
        for (std::size_t step = 0; step < times.size(); ++step) {
            ReadOptions options;
            options.time = times[step];
            EXPECT_EQ(difference(read_mesh(path, options), state_of(mesh, step)), "") << name << " " << step;
        }
        // What does not change is there once.
        const auto root = Hdf5Group::open_file(path, "test").group("VTKHDF");
        EXPECT_EQ(root.shape("Points").first, 2 * mesh.num_points()) << name;
        for (const DataArray& array : mesh.cell_data)
            EXPECT_EQ(root.group("CellData").shape(array.name()).first, 2 * mesh.num_cells()) << name;
    }
}

TEST(VtkHdf, RefusesAStateOfASeriesThatIsUnlikeTheFirst)
{
    const TemporaryFolder folder;
    const std::vector<double> times{0, 1};
    const auto refused = [&](const Mesh& second, const std::string& what) {
        EXPECT_TRUE(throws_with<InvalidInput>("the state at 1 has other " + what, [&] {
            write_vtkhdf_series(folder / "run.vtkhdf", times,
                                [&](std::size_t step) { return step == 0 ? cube(2) : second; });
        }));
        EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
    };
    refused(cube(3), "points or cells");
    auto changed = cube(2);
    std::swap(changed.cells.indices[0], changed.cells.indices[1]);
    refused(changed, "points or cells");
    changed = cube(2);
    changed.point_data.push_back(
        DataArray::from("more", std::vector<float>(static_cast<std::size_t>(changed.num_points()))));
    refused(changed, "arrays");
}

TEST(VtkHdf, WarnsOfTextsAtWhichVtkStops)
{
    const TemporaryFolder folder;
    Mesh mesh = cube(1);
    for (auto* arrays : {&mesh.point_data, &mesh.cell_data})
        std::erase_if(*arrays, [](const DataArray& array) { return array.type() == ScalarType::String; });
    std::vector<std::string> said;
    set_read_warning_handler([&](const std::string& text) { said.push_back(text); });

    write_mesh(folder / "numbers.vtkhdf", mesh);
    EXPECT_TRUE(said.empty());
    mesh.cell_data.push_back(DataArray::from_strings("names", {"one"}));
    write_mesh(folder / "texts.vtkhdf", mesh);
    set_read_warning_handler({});

    ASSERT_EQ(said.size(), 1U);
    EXPECT_NE(said[0].find("texts.vtkhdf: the array 'names' has texts"), std::string::npos) << said[0];
}

TEST(VtkHdf, RefusesWhatItCannotHold)
{
    const TemporaryFolder folder;
    Mesh slash = cube(1);
    slash.point_data.front().rename("a/b");
    EXPECT_TRUE(throws_with<InvalidInput>("'a/b' cannot stand in an HDF5 file",
                                          [&] { write_mesh(folder / "a.vtkhdf", slash); }));
    EXPECT_TRUE(throws_with<InvalidInput>(
        "zlib only", [&] { write_mesh(folder / "a.vtkhdf", cube(1), {.compression = Compression::Lz4}); }));
    EXPECT_TRUE(throws_with<IoError>("there is no folder", [&] { write_mesh(folder / "no/a.vtkhdf", cube(1)); }));
    EXPECT_EQ(folder.size(), 0);
    EXPECT_TRUE(throws_with<IoError>("does not exist", [&] { read_mesh(folder / "a.vtkhdf"); }));
    write_bytes(folder / "a.vtkhdf", "no HDF5");
    EXPECT_TRUE(throws_with<IoError>("cannot be opened as HDF5", [&] { read_mesh(folder / "a.vtkhdf"); }));
}

TEST(VtkHdf, IsRefusedWhenCut)
{
    const TemporaryFolder folder;
    write_mesh(folder / "a.vtkhdf", cube(2));
    const std::string bytes = read_bytes(folder / "a.vtkhdf");
    for (std::size_t size = 0; size < bytes.size(); size += 97) {
        write_bytes(folder / "a.vtkhdf", std::string_view(bytes).substr(0, size));
        EXPECT_THROW(read_mesh(folder / "a.vtkhdf"), IoError) << size;
    }
}

}  // namespace
}  // namespace meshard
