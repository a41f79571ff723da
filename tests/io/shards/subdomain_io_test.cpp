// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/content_hash.h"
#include "io/mesh_io.h"
#include "io/shards/subdomain_io.h"
#include "partition/cut/metis_partitioner.h"
#include "partition/error.h"
#include "partition/mesh/mesh_graph.h"
#include "tests/io/vtk/vtk_oracle.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

namespace meshard {
namespace {

std::vector<Subdomain> subdomains_of(const Mesh& mesh, std::int32_t num_parts, std::int32_t num_layers)
{
    const Csr graph = mesh_graph(mesh);
    return extract_subdomains(mesh, graph, partition_with_metis(graph, {.num_parts = num_parts}), num_layers);
}

/// The mesh with arrays that have the names and the role which meshard itself uses in pieces.
Mesh with_clashing_arrays(Mesh mesh)
{
    for (const char* name : {"vtkGhostType", "GlobalCellIds", "PartitionId", "GhostLevel", "GhostLevel of source"})
        mesh.cell_data.push_back(DataArray(name, ScalarType::Float64, mesh.num_cells(), 2));
    for (const char* name : {"GlobalPointIds", "vtkGhostType", "PartitionId"}) {
        mesh.point_data.push_back(DataArray(name, ScalarType::UInt16, mesh.num_points()));
    }
    mesh.point_data.push_back(DataArray("my ids", ScalarType::Int64, mesh.num_points()));
    mesh.point_data.back().attribute = "Scalars GlobalIds";
    mesh.field_data.push_back(DataArray::from("PartitionId", std::vector<float>{4}));
    return mesh;
}

void expect_same(const Subdomain& found, const Subdomain& expected, const std::string& what)
{
    EXPECT_EQ(difference(found.mesh, expected.mesh), "") << what;
    EXPECT_EQ(found.part, expected.part) << what;
    EXPECT_EQ(found.num_parts, expected.num_parts) << what;
    EXPECT_EQ(found.num_ghost_layers, expected.num_ghost_layers) << what;
    EXPECT_EQ(found.cells, expected.cells) << what;
    EXPECT_EQ(found.points, expected.points) << what;
    EXPECT_EQ(found.ghost_levels, expected.ghost_levels) << what;
}

TEST(SubdomainIo, GivesBackWhatWasSaved)
{
    for (const auto& [name, sample] : sample_meshes())
        for (const std::int32_t num_parts : {1, 3, 7})
            for (const bool clashing : {false, true}) {
                const TemporaryFolder folder;
                const auto subdomains =
                    subdomains_of(clashing ? with_clashing_arrays(sample) : sample, num_parts, num_parts == 1 ? 0 : 2);

                save_subdomains(folder / "shards", subdomains, {});

                for (const Subdomain& expected : subdomains)
                    expect_same(load_subdomain(folder / "shards", expected.part), expected,
                                name + " part " + std::to_string(expected.part) + " of " + std::to_string(num_parts));
            }
}

TEST(SubdomainIo, PiecesAreOrdinaryVtkFiles)
{
    for (const auto& [name, mesh] : sample_meshes()) {
        const TemporaryFolder folder;
        const auto subdomains = subdomains_of(mesh, 3, 1);
        save_subdomains(folder / "shards", subdomains, {});
        const Manifest manifest = read_manifest(folder / "shards");
        std::int64_t num_points = 0, num_cells = 0, num_ghost_points = 0, num_ghost_cells = 0;

        for (const Subdomain& subdomain : subdomains) {
            const auto path = folder / "shards" / manifest.parts[subdomain.part].file;
            const Mesh piece = read_mesh(path);
            EXPECT_EQ(vtk_difference(path, piece), "") << name;
            const VtkSummary seen = vtk_summary(path);
            EXPECT_EQ(seen.num_cells, subdomain.mesh.num_cells()) << name;
            EXPECT_EQ(seen.num_ghost_cells, subdomain.cells.num_ghosts()) << name;
            EXPECT_EQ(seen.num_ghost_points, subdomain.points.num_ghosts()) << name;
            EXPECT_EQ(seen.point_global_ids, "GlobalPointIds") << name;
            EXPECT_EQ(seen.cell_global_ids, mesh.is_point_cloud() ? "" : "GlobalCellIds") << name;
            EXPECT_EQ(require_array(piece.point_data, "PartitionId", name, "point").type(), ScalarType::Int32);
            num_points += seen.num_points;
            num_cells += seen.num_cells;
            num_ghost_points += seen.num_ghost_points;
            num_ghost_cells += seen.num_ghost_cells;
        }
        const VtkSummary whole = vtk_summary(folder / "shards" / index_name(mesh.kind));
        EXPECT_EQ(whole.num_points, num_points) << name;
        EXPECT_EQ(whole.num_cells, num_cells) << name;
        EXPECT_EQ(whole.num_ghost_points, num_ghost_points) << name;
        EXPECT_EQ(whole.num_ghost_cells, num_ghost_cells) << name;
        EXPECT_EQ(num_cells - num_ghost_cells, mesh.num_cells()) << name;
        EXPECT_EQ(num_points - num_ghost_points, mesh.num_points()) << name;
    }
}

TEST(SubdomainIo, ManifestSaysWhatWasCut)
{
    const TemporaryFolder folder;
    const Mesh mesh = cube(3);
    write_mesh(folder / "cube.vtu", mesh);
    const Csr graph = mesh_graph(mesh);
    const Partition partition = partition_with_metis(graph, {.num_parts = 2});
    const ShardsInfo info{.source = folder / "cube.vtu",
                          .source_hash = "",
                          .method = "metis",
                          .seed = 5,
                          .options = {{"imbalance", "1.03"}},
                          .versions = {{"METIS", "5.1.0"}},
                          .quality = measure_quality(partition, graph)};

    save_subdomains(folder / "shards", extract_subdomains(mesh, graph, partition, 1), info);
    const Manifest manifest = read_manifest(folder / "shards");

    EXPECT_EQ(manifest.info.source, (folder / "cube.vtu").string());
    EXPECT_EQ(manifest.info.source_hash, hash_file(folder / "cube.vtu"));
    EXPECT_EQ(manifest.info.method, "metis");
    EXPECT_EQ(manifest.info.seed, 5);
    EXPECT_EQ(manifest.info.options, info.options);
    EXPECT_EQ(manifest.info.versions, info.versions);
    EXPECT_EQ(manifest.info.quality.edge_cut, info.quality.edge_cut);
    EXPECT_EQ(manifest.info.quality.parts.at(1).neighbors, info.quality.parts[1].neighbors);
    EXPECT_EQ(manifest.kind, MeshKind::Unstructured);
    EXPECT_EQ(manifest.num_cells, 27);
    EXPECT_EQ(manifest.num_points, 64);
    EXPECT_EQ(manifest.num_ghost_layers, 1);
    EXPECT_EQ(manifest.bounds, (std::array<double, 6>{0, 1, 0, 1, 0, 1}));
    EXPECT_EQ(manifest.arrays.size(), 7U);
    EXPECT_EQ(manifest.parts.at(0).num_owned_cells + manifest.parts.at(1).num_owned_cells, 27);
    EXPECT_EQ(manifest.parts[0].hash, hash_file(folder / "shards" / manifest.parts[0].file));
}

TEST(SubdomainIo, RefusesAndLeavesNothing)
{
    const TemporaryFolder folder;
    auto subdomains = subdomains_of(strip(6), 2, 1);
    const auto save = [&](const char* name) {
        return [&folder, &subdomains, name] { save_subdomains(folder / name, subdomains, {}); };
    };
    std::filesystem::create_directory(folder / "exists");

    EXPECT_TRUE(throws_with<IoError>("exists; choose another name or remove it", save("exists")));
    EXPECT_TRUE(throws_with<IoError>("exists; choose another name or remove it", save("exists/")));
    EXPECT_TRUE(throws_with<IoError>("cannot create the folder /proc/shards",
                                     [&] { save_subdomains("/proc/shards", subdomains, {}); }));
    EXPECT_TRUE(throws_with<InvalidInput>("there are no subdomains", [&] { save_subdomains(folder / "new", {}, {}); }));
    std::swap(subdomains[0], subdomains[1]);
    EXPECT_TRUE(throws_with<InvalidInput>("says it is part 1 of 2", save("new")));
    std::swap(subdomains[0], subdomains[1]);
    auto twice = subdomains;
    twice[1] = twice[0];
    twice[1].part = 1;
    EXPECT_TRUE(throws_with<InvalidInput>("Pass each part once", [&] { save_subdomains(folder / "new", twice, {}); }));
    subdomains[1].num_ghost_layers = 2;
    EXPECT_TRUE(throws_with<InvalidInput>("of another mesh than subdomain 0", save("new")));
    EXPECT_EQ(folder.size(), 1);
}

TEST(SubdomainIo, MakesTheFoldersAbove)
{
    const TemporaryFolder folder;
    save_subdomains(folder / "a/b/shards/", subdomains_of(strip(6), 2, 1), {});
    EXPECT_TRUE(is_shards_folder(folder / "a/b/shards"));
    EXPECT_EQ(load_subdomains(folder / "a/b/shards").size(), 2U);
}

TEST(SubdomainIo, SaysWhatIsWrongWithAFolder)
{
    const TemporaryFolder folder;
    save_subdomains(folder / "shards", subdomains_of(strip(6), 2, 1), {});
    const auto read = [&](const char* name) { return [&folder, name] { read_manifest(folder / name); }; };
    const auto with_manifest = [&](const std::string& find, const std::string& by) {
        std::string text = read_bytes(folder / "shards/manifest.json");
        text.replace(text.find(find), find.size(), by);
        std::filesystem::create_directories(folder / "bad");
        write_bytes(folder / "bad/manifest.json", text);
        return read("bad");
    };
    std::filesystem::create_directory(folder / "empty");

    EXPECT_TRUE(throws_with<IoError>("there is no folder", read("absent")));
    EXPECT_TRUE(throws_with<IoError>("is not a shards folder", read("empty")));
    EXPECT_TRUE(throws_with<IoError>("is damaged", with_manifest("{", "[")));
    EXPECT_TRUE(throws_with<IoError>("is damaged", with_manifest("\"parts\"", "\"part\"")));
    EXPECT_TRUE(throws_with<IoError>("no manifest of a shards folder", with_manifest("meshard shards", "other")));
    EXPECT_TRUE(throws_with<IoError>("has version 2", with_manifest("\"version\": 1", "\"version\": 2")));
    EXPECT_TRUE(throws_with<IoError>("kind is 'solid'", with_manifest("surface", "solid")));
    EXPECT_TRUE(throws_with<IoError>("unknown array type 'Float33'", with_manifest("Float32", "Float33")));
    EXPECT_TRUE(throws_with<IoError>("is not inside the folder", with_manifest("pieces/mesh_0000", "../mesh_0000")));
    EXPECT_TRUE(
        throws_with<InvalidInput>("has the parts 0 to 1, not 2", [&] { load_subdomain(folder / "shards", 2); }));
}

TEST(SubdomainIo, RefusesPiecesThatDoNotFitTheManifest)
{
    const TemporaryFolder folder;
    save_subdomains(folder / "shards", subdomains_of(strip(6), 2, 1), {});
    const Manifest good = read_manifest(folder / "shards");
    const auto path = folder / "shards" / good.parts[0].file;
    const Mesh piece = read_mesh(path);
    const auto load = [&](const Mesh& changed) {
        write_mesh(path, changed);
        return [&folder] { load_subdomain(folder / "shards", 0, PieceCheck::Trust); };
    };
    const auto without = [&](const char* name) {
        Mesh changed = piece;
        std::erase_if(changed.cell_data, [&](const DataArray& array) { return array.name() == name; });
        return changed;
    };
    const auto with = [&](const char* name, auto value) {
        Mesh changed = without(name);
        changed.cell_data.push_back(
            DataArray::from(name, std::vector<decltype(value)>(static_cast<std::size_t>(piece.num_cells()), value)));
        return changed;
    };
    Mesh more = piece;
    more.cell_data.push_back(DataArray("more", ScalarType::Int8, piece.num_cells()));

    EXPECT_TRUE(throws_with<IoError>("has no array 'GlobalCellIds'", load(without("GlobalCellIds"))));
    EXPECT_TRUE(
        throws_with<IoError>("has an array 'GhostLevel' of Float32, expected UInt8", load(with("GhostLevel", 0.F))));
    EXPECT_TRUE(throws_with<IoError>("has no cell array 'patch'", load(without("patch"))));
    EXPECT_TRUE(throws_with<IoError>("as 1 x Float64, the manifest as 1 x Int32", load(with("patch", 1.0))));
    EXPECT_TRUE(throws_with<IoError>("'more', which the manifest does not list", load(more)));
    EXPECT_TRUE(throws_with<IoError>("has a wrong numbering", load(with("GlobalCellIds", std::int64_t{1}))));
    EXPECT_TRUE(throws_with<IoError>("but PartitionId says 1", load(with("PartitionId", std::int32_t{1}))));
    EXPECT_TRUE(throws_with<IoError>("owned rows first", load(with("vtkGhostType", std::uint8_t{7}))));
    write_bytes(path, "x");
    EXPECT_THROW(load_subdomain(folder / "shards", 0), IoError);
    std::filesystem::remove(path);
    EXPECT_TRUE(throws_with<IoError>("does not exist", [&] { load_subdomain(folder / "shards", 0); }));
    // The piece of the other part is whole, but not what the manifest says of part 0.
    std::filesystem::copy(folder / "shards" / good.parts[1].file, path);
    EXPECT_THROW(load_subdomain(folder / "shards", 0), IoError);
}

}  // namespace
}  // namespace meshard
