// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/content_hash.h"
#include "io/mesh_io.h"
#include "io/shards/manifest.h"
#include "io/shards/piece_io.h"
#include "io/shards/shard_check.h"
#include "io/shards/subdomain_io.h"
#include "partition/cut/metis_partitioner.h"
#include "partition/error.h"
#include "partition/mesh/mesh_graph.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <functional>

namespace meshard {
namespace {

std::vector<Subdomain> cut(const Mesh& mesh, std::int32_t num_parts, std::int32_t num_layers)
{
    const Csr graph = mesh_graph(mesh);
    return extract_subdomains(mesh, graph, partition_with_metis(graph, {.num_parts = num_parts}), num_layers);
}

TEST(ShardCheck, FindsNothingInGoodFolders)
{
    for (const auto& [name, mesh] : sample_meshes())
        for (const std::int32_t num_parts : {1, 2, 5})
            for (const std::int32_t num_layers : {0, 1, 2}) {
                const TemporaryFolder folder;
                save_subdomains(folder / "shards", cut(mesh, num_parts, num_layers), {});
                EXPECT_EQ(check_shards(folder / "shards"), std::vector<std::string>()) << name;
            }
}

/// Writes a folder from parts that were changed: all hashes and counts fit, only the invariant in question does not.
testing::AssertionResult finds(const std::string& text, const std::function<void(std::vector<Subdomain>&)>& change,
                               std::int32_t num_layers = 1)
{
    const TemporaryFolder folder;
    auto subdomains = cut(cube(4), 3, num_layers);
    change(subdomains);
    save_subdomains(folder / "shards", subdomains, {});
    const auto faults = check_shards(folder / "shards");
    std::string all;
    for (const auto& fault : faults) {
        if (fault.find(text) != std::string::npos) return testing::AssertionSuccess();
        all += fault + "\n";
    }
    return testing::AssertionFailure() << "expected \"" << text << "\" among:\n" << all;
}

/// The part without its last ghost cell; its points stay.
void drop_last_ghost(Subdomain& part)
{
    std::vector<std::int32_t> cells, points;
    for (std::int32_t i = 0; i + 1 < part.cells.num_local(); ++i) cells.push_back(i);
    for (std::int32_t i = 0; i < part.points.num_local(); ++i) points.push_back(i);
    part.mesh = extract_mesh(part.mesh, cells, points);
    part.cells.global_ids.pop_back();
    part.cells.ghost_owners.pop_back();
    part.ghost_levels.pop_back();
}

TEST(ShardCheck, FindsEachBrokenPromise)
{
    EXPECT_TRUE(finds("differs from the owners of its rows: points",
                      [](auto& parts) { parts[1].mesh.points.template mutable_values<double>().back() += 1e-9; }));
    EXPECT_TRUE(finds("differs from the owners of its rows: cell array 'label'", [](auto& parts) {
        parts[2].mesh.cell_data[2].template mutable_values<std::int64_t>().back() ^= 1;
    }));
    EXPECT_TRUE(finds("differs from the owners of its rows: point array 'pressure'",
                      [](auto& parts) { parts[2].mesh.point_data[0].template mutable_values<float>().back() = -0.F; }));
    EXPECT_TRUE(finds("differs from the owners of its rows: cells", [](auto& parts) {
        auto& indices = parts[0].mesh.cells.indices;
        std::swap(indices[indices.size() - 1], indices[indices.size() - 2]);
    }));
    EXPECT_TRUE(finds(
        "its ghosts are not the 2 layers around it",
        [](auto& parts) {
            auto& levels = parts[0].ghost_levels;
            levels.back() = levels.back() == 1 ? 2 : 1;
        },
        2));
    EXPECT_TRUE(finds("names part", [](auto& parts) {
        auto& owners = parts[0].cells.ghost_owners;
        owners.assign(owners.size(), 2);
        std::ranges::sort(parts[0].cells.global_ids.begin() + parts[0].cells.num_owned,
                          parts[0].cells.global_ids.end());
    }));
    EXPECT_TRUE(finds("is not the", [](auto& parts) { drop_last_ghost(parts[0]); }) ||
                finds("its ghosts are not the 1 layers around it", [](auto& parts) { drop_last_ghost(parts[0]); }) ||
                finds("belongs to no local cell", [](auto& parts) { drop_last_ghost(parts[0]); }));
    for (const char* text : {"is owned by part 0 and by part 1", "is owned by no part"}) {
        EXPECT_TRUE(finds(text, [](auto& parts) {
            auto& first = parts[0].points.global_ids[0];
            auto& other = parts[1].points.global_ids[0];
            first = other = std::min(first, other);
        }));
    }
}

TEST(ShardCheck, FindsChangedFiles)
{
    const TemporaryFolder folder;
    save_subdomains(folder / "shards", cut(cube(3), 2, 1), {});
    const auto check = [&] {
        std::string all;
        for (const auto& fault : check_shards(folder / "shards")) all += fault + "\n";
        return all;
    };
    const auto with_file = [&](const char* name, const std::function<void(std::string&)>& change) {
        const std::string before = read_bytes(folder / "shards" / name);
        std::string bytes = before;
        change(bytes);
        write_bytes(folder / "shards" / name, bytes);
        const std::string faults = check();
        write_bytes(folder / "shards" / name, before);
        return faults;
    };
    const char* piece = "pieces/mesh_0001.vtu";

    EXPECT_NE(
        with_file(piece, [](std::string& bytes) { bytes[bytes.size() / 2] ^= 1; }).find("its content was changed"),
        std::string::npos);
    EXPECT_NE(with_file(piece, [](std::string& bytes) { bytes.pop_back(); }).find("bytes, the manifest says"),
              std::string::npos);
    EXPECT_NE(with_file(piece, [](std::string& bytes) { bytes.resize(500); }).find("truncated"), std::string::npos);
    const auto with_one_more = [](std::string& text, const std::string& key) {
        const auto at = text.find('"' + key + "\": ") + key.size() + 4, end = text.find_first_of(",\n", at);
        text.replace(at, end - at, std::to_string(std::stoll(text.substr(at, end - at)) + 1));
    };
    EXPECT_NE(with_file("manifest.json",
                        [&](std::string& text) {
                            with_one_more(text, "owned_cells");
                            with_one_more(text, "cells");
                            text.erase(text.rfind(",\n  \"hash\""),
                                       std::string(",\n  \"hash\": \"xxh64:0123456789abcdef\"").size());
                        })
                  .find("owned cells, the manifest says"),
              std::string::npos);
    EXPECT_NE(with_file("manifest.json", [&](std::string& text) { with_one_more(text, "edge_cut"); })
                  .find("is damaged or was changed"),
              std::string::npos);
    EXPECT_NE(with_file("manifest.json", [](std::string& text) { text.resize(50); }).find("is damaged"),
              std::string::npos);
    EXPECT_NE(with_file("mesh.pvtu", [](std::string& text) { text.replace(text.find("mesh_0001"), 9, "mesh_0000"); })
                  .find("does not name the pieces"),
              std::string::npos);
    std::filesystem::remove(folder / "shards/mesh.pvtu");
    EXPECT_NE(check().find("does not exist"), std::string::npos);
    std::filesystem::remove(folder / "shards" / piece);
    EXPECT_NE(check().find("mesh_0001.vtu does not exist"), std::string::npos);
}

// Who believes the counts of a damaged manifest asks for their memory: minutes, or an error of the allocator.
TEST(ShardCheck, RefusesCountsThatPartsDoNotHave)
{
    const TemporaryFolder folder;
    save_subdomains(folder / "shards", cut(cube(3), 3, 1), {});
    const auto file = folder / "shards/manifest.json";
    const auto good = nlohmann::ordered_json::parse(read_bytes(file));
    const auto refused = [&](const std::function<void(nlohmann::ordered_json&)>& change, const std::string& text) {
        auto json = good;
        change(json);
        write_bytes(file, json.dump());
        const auto faults = check_shards(folder / "shards");
        if (faults.size() != 1 || faults[0].find("manifest.json") == std::string::npos ||
            faults[0].find(text) == std::string::npos)
            return testing::AssertionFailure()
                   << "expected \"" << text << "\", found " << testing::PrintToString(faults);
        return throws_with<IoError>(text, [&] { read_manifest(folder / "shards"); });
    };

    EXPECT_TRUE(refused([](auto& json) { json["cells"] = 4611686018427387904; },
                        "cells is 4611686018427387904, expected 27, the sum of owned_cells"));
    EXPECT_TRUE(refused([](auto& json) { json["points"] = 10000000000; },
                        "points is 10000000000, expected 64, the sum of owned_points"));
    EXPECT_TRUE(refused([](auto& json) { json["points"] = -1; }, "points is -1, expected a whole number"));
    EXPECT_TRUE(refused([](auto& json) { json["cells"] = 1e30; }, "cells is 1e+30, expected a whole number"));
    EXPECT_TRUE(refused([](auto& json) { json["cells"] = "27"; }, "cells is \"27\", expected a whole number"));
    EXPECT_TRUE(refused([](auto& json) { json["ghost_layers"] = 4294967297; },
                        "ghost_layers is 4294967297, expected a whole number from 0 to 2147483647"));
    EXPECT_TRUE(refused([](auto& json) { json["version"] = 1.5; }, "has version 1.5, this program knows version 1"));
    for (const char* key : {"owned_cells", "ghost_cells", "owned_points", "ghost_points"}) {
        EXPECT_TRUE(refused([&](auto& json) { json["parts"][1][key] = 10000000000; },
                            std::string("piece 'pieces/mesh_0001.vtu': ") + key +
                                " is 10000000000, expected a whole number from 0 to 2147483647"));
    }
    EXPECT_TRUE(refused(
        [](auto& json) {
            auto part = json["parts"][2];
            part["owned_cells"] = part["owned_points"] = 0;
            for (int i = 0; i < 1000; ++i) json["parts"].push_back(part);
        },
        "two parts have the piece 'pieces/mesh_0002.vtu'"));
    write_bytes(file, good.dump());
    EXPECT_EQ(check_shards(folder / "shards"), std::vector<std::string>());
}

TEST(ShardCheck, FindsWrongFiguresOfPartsInTheManifest)
{
    const TemporaryFolder folder;
    const Mesh mesh = cube(3);
    const Csr graph = mesh_graph(mesh);
    const Partition partition = partition_with_metis(graph, {.num_parts = 2});
    const auto finds = [&](const std::string& name, const std::string& text,
                           const std::function<void(PartQuality&)>& change) {
        ShardsInfo info{.quality = measure_quality(partition, graph)};
        change(info.quality.parts[1]);
        save_subdomains(folder / name, extract_subdomains(mesh, graph, partition, 0), info);
        const auto faults = check_shards(folder / name);
        EXPECT_EQ(faults.size(), 1U) << testing::PrintToString(faults);
        EXPECT_NE(faults.at(0).find(text), std::string::npos) << faults.at(0);
    };
    finds("owned", "the manifest states 1000 owned rows of part 1, found ", [](auto& part) { part.num_owned = 1000; });
    finds("ghosts", "the manifest states 0 ghosts of part 1", [](auto& part) { part.num_ghosts = 0; });
    finds("edges", "the manifest states 0 cut edges of part 1", [](auto& part) { part.cut_edges = 0; });
    finds("pieces", "the manifest states 7 connected pieces of part 1, found ",
          [](auto& part) { part.num_components = 7; });
    finds("neighbours", "other neighbours of part 1", [](auto& part) { part.neighbors[0] = 5; });
}

TEST(ShardCheck, FindsAWrongEdgeCutInTheManifest)
{
    const TemporaryFolder folder;
    const Mesh mesh = cube(3);
    const Csr graph = mesh_graph(mesh);
    const Partition partition = partition_with_metis(graph, {.num_parts = 2});
    ShardsInfo info{.quality = measure_quality(partition, graph)};
    info.quality.edge_cut += 1;

    save_subdomains(folder / "shards", extract_subdomains(mesh, graph, partition, 0), info);

    const auto faults = check_shards(folder / "shards");
    ASSERT_EQ(faults.size(), 1U);
    EXPECT_NE(faults[0].find("states an edge cut of"), std::string::npos);
}

TEST(ShardCheck, WantsAShardsFolder)
{
    const TemporaryFolder folder;
    EXPECT_TRUE(throws_with<IoError>("is not a shards folder", [&] { check_shards(folder.path()); }));
}

}  // namespace
}  // namespace meshard
