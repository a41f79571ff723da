// SPDX-License-Identifier: Apache-2.0
// The larger sample data, where they lie beside the checkout; VTK's own readers say what must be found in them.
#include "io/mesh_io.h"
#include "io/shards/shard_check.h"
#include "io/shards/subdomain_io.h"
#include "partition/cut/metis_partitioner.h"
#include "partition/mesh/mesh_graph.h"
#include "tests/io/vtk/vtk_oracle.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_paths.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace meshard {
namespace {

const std::filesystem::path data_folder = source_path("../shared/data");

std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder, const char* extension)
{
    std::vector<std::filesystem::path> files;
    std::error_code absent;
    for (const auto& entry : std::filesystem::directory_iterator(data_folder / folder, absent))
        if (entry.path().extension() == extension) files.push_back(entry.path());
    std::ranges::sort(files);
    return files;
}

/// All there are; where only the repository is, those of the sample.
std::vector<std::filesystem::path> surfaces()
{
    const auto all = files_in("ahmed_mini", ".vtp");
    return all.empty() ? files_in(source_path("apps/sample"), ".vtp") : all;
}

void expect_read_as_by_vtk(const std::vector<std::filesystem::path>& files)
{
    if (files.empty()) GTEST_SKIP() << "there are no sample data in " << data_folder;
    for (const auto& path : files) {
        const Mesh mesh = read_mesh(path);
        EXPECT_NO_THROW(mesh.validate()) << path;
        EXPECT_EQ(vtk_difference(path, mesh), "") << path;
    }
}

TEST(SampleData, SurfacesAreReadAsByVtk)
{
    expect_read_as_by_vtk(surfaces());
}
TEST(SampleData, GeometriesAreReadAsByVtk)
{
    expect_read_as_by_vtk(files_in("ahmed_mini", ".stl"));
}
TEST(SampleData, VolumesAreReadAsByVtk)
{
    expect_read_as_by_vtk(files_in("ahmed_mini/volumes", ".vtu"));
}
TEST(SampleData, MotorbikeIsReadAsByVtk)
{
    expect_read_as_by_vtk(files_in("motorbike", ".vtu"));
}

void expect_cut_and_merged(const std::filesystem::path& path, std::int32_t num_parts, std::int32_t num_layers)
{
    const TemporaryFolder folder;
    const Mesh mesh = read_mesh(path);
    const Csr graph = mesh_graph(mesh);
    save_subdomains(folder / "shards",
                    extract_subdomains(mesh, graph, partition_with_metis(graph, {.num_parts = num_parts}), num_layers),
                    {.source = path});
    const std::string what = path.filename().string() + " in " + std::to_string(num_parts);

    EXPECT_EQ(check_shards(folder / "shards"), std::vector<std::string>()) << what;
    const Mesh merged = merge_subdomains(load_subdomains(folder / "shards"));
    EXPECT_EQ(difference(merged, mesh), "") << what;
    write_mesh(folder / path.filename().string(), merged);
    EXPECT_EQ(difference(read_mesh(folder / path.filename().string()), mesh), "") << what;
    const VtkSummary whole = vtk_summary(folder / "shards" / index_name(mesh.kind));
    EXPECT_EQ(whole.num_cells - whole.num_ghost_cells, mesh.num_cells()) << what;
    EXPECT_EQ(whole.num_points - whole.num_ghost_points, mesh.num_points()) << what;
}

TEST(SampleData, SurfacesSurviveCuttingAndMerging)
{
    const auto files = surfaces();
    ASSERT_FALSE(files.empty());
    for (std::size_t i = 0; i < files.size(); i += 8)
        for (const std::int32_t num_parts : {1, 7, 64})
            expect_cut_and_merged(files[i], num_parts, static_cast<std::int32_t>(i % 3));
}

TEST(SampleData, VolumesSurviveCuttingAndMerging)
{
    const auto files = files_in("ahmed_mini/volumes", ".vtu");
    if (files.empty()) GTEST_SKIP() << "there are no sample data in " << data_folder;
    expect_cut_and_merged(files.front(), 7, 2);
    expect_cut_and_merged(files.back(), 2, 1);
}

TEST(SampleData, MotorbikeSurvivesCuttingAndMerging)
{
    for (const char* extension : {".vtu", ".vtp"}) {
        const auto files = files_in("motorbike", extension);
        if (files.empty()) GTEST_SKIP() << "there are no sample data in " << data_folder;
        expect_cut_and_merged(files.front(), 8, 1);
    }
}

}  // namespace
}  // namespace meshard
