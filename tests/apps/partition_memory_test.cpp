// SPDX-License-Identifier: Apache-2.0
// meshard partition for meshes that no process holds as a whole.
#include "tests/apps/program_test.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/test_paths.h"

#include <cmath>
#include <cstdlib>
#include <map>

namespace meshard {
namespace {

class PartitionInWindows : public ProgramTest {
protected:
    // Hashes of all pieces.
    std::map<std::string, std::string> hashes(const std::string& shards) const
    {
        std::ifstream file(shards + "/manifest.json");
        std::map<std::string, std::string> found;
        for (const auto& part : nlohmann::json::parse(file)["parts"]) found[part["file"]] = part["hash"];
        return found;
    }

    void expect_whole(const std::string& shards, const std::string& source) const
    {
        const auto check = meshard({"check", shards});
        EXPECT_EQ(check.exit_code, 0) << check.out << check.err;
        const auto merge = meshard({"merge", shards, "--verify", source});
        EXPECT_EQ(merge.exit_code, 0) << merge.out << merge.err;
    }

    static bool has_mpirun() { return std::system("command -v mpirun > /dev/null 2>&1") == 0; }

    static ProgramResult on_ranks(int num_ranks, std::vector<std::string> arguments)
    {
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
        arguments.insert(arguments.begin(), {"mpirun", "--oversubscribe", "-np", std::to_string(num_ranks), program_path()});
        return run_program("/usr/bin/env", arguments);
    }
};

TEST_F(PartitionInWindows, LosesNothing)
{
    for (const auto& [name, mesh] : sample_meshes()) {
        const bool has_faces = std::ranges::any_of(mesh.cell_types, [](auto type) { return type != 1; });
        if (mesh.num_cells() < 3 || !has_faces) continue;
        SCOPED_TRACE(name);
        const std::string source = write(name + extension_of(mesh.kind), mesh);

        const auto result = meshard({"partition", source, "-n", "3", "-o", path(name), "--max-memory", "200M", "--ghost-layers", "2"});

        ASSERT_EQ(result.exit_code, 0) << result.err;
        expect_whole(path(name), source);
    }
}

TEST_F(PartitionInWindows, StaysWithinTheMemoryAllowed)
{
    const std::string source = write("cube.vtu", cube(64)); // 262144 cells, 25 MB
    constexpr double megabyte = 1048576;
    // What the program takes for nothing: 30 MB, or some 160 with LibTorch.
    const auto program = meshard_json({"partition", write("small.vtu", cube(4)), "-n", "2", "--dry-run"})["peak_rss_bytes"].get<double>();
    const auto allowed = std::ceil(program / megabyte) + 65;

    const auto whole = meshard_json({"partition", source, "-n", "16", "--dry-run"});
    const auto bounded = meshard_json({"partition", source, "-n", "16", "-o", path("bounded"), "--max-memory", std::to_string(static_cast<int>(allowed)) + "M"});

    EXPECT_GT(whole["peak_rss_bytes"], (allowed + 15) * megabyte); // else this shows nothing
    EXPECT_LE(bounded["peak_rss_bytes"], allowed * megabyte);
    EXPECT_LE(bounded["imbalance"], 1.03);
    const auto check = meshard({"check", path("bounded")});
    EXPECT_EQ(check.exit_code, 0) << check.out << check.err;
}

TEST_F(PartitionInWindows, WritesTheSameShardsOnAnyNumberOfRanks)
{
    if (!has_mpirun()) GTEST_SKIP() << "mpirun is not installed";
    const std::string source = write("tets.vtu", tet_cube(16));
    ASSERT_EQ(meshard({"partition", source, "-n", "5", "-o", path("one"), "--max-memory", "1G", "--ghost-layers", "2"}).exit_code, 0);
    const auto expected = hashes(path("one"));

    for (const int num_ranks : {2, 3}) {
        const auto shards = path("on" + std::to_string(num_ranks));
        const auto result = on_ranks(num_ranks, {"partition", source, "-n", "5", "-o", shards, "--max-memory", "1G", "--ghost-layers", "2"});
        ASSERT_EQ(result.exit_code, 0) << result.err;
        EXPECT_EQ(hashes(shards), expected) << num_ranks;
        expect_whole(shards, source);
    }
}

TEST_F(PartitionInWindows, EndsAllRanksWithOneSentence)
{
    if (!has_mpirun()) GTEST_SKIP() << "mpirun is not installed";
    auto mesh = tet_cube(8);
    mesh.points.mutable_values<double>().back() = std::numeric_limits<double>::infinity();
    const std::string source = write("bad.vtu", mesh);

    const auto result = on_ranks(3, {"partition", source, "-n", "3", "-o", path("shards")});

    EXPECT_EQ(result.exit_code, 3) << result.err;
    const auto first = result.err.find("NaN or infinite");
    ASSERT_NE(first, std::string::npos) << result.err;
    EXPECT_EQ(result.err.find("NaN or infinite", first + 1), std::string::npos) << result.err;
    for (const auto& entry : std::filesystem::directory_iterator(path(""))) EXPECT_EQ(entry.path().filename().string().find("shards"), std::string::npos);
}

TEST_F(PartitionInWindows, ReadsVtkHdfWhereItLies)
{
    const auto mesh = tet_cube(6);
    const std::string source = write("tets.vtkhdf", mesh);

    const auto result = meshard({"partition", source, "-n", "3", "-o", path("shards"), "--max-memory", "1G"});

    ASSERT_EQ(result.exit_code, 0) << result.err;
    expect_whole(path("shards"), source);
}

TEST_F(PartitionInWindows, SaysWhatToDoWithOtherFiles)
{
    const std::string raw = write("raw.vtu", tet_cube(4));
    ASSERT_EQ(meshard({"convert", raw, path("zlib.vtu"), "--compress", "zlib"}).exit_code, 0);
    ASSERT_EQ(meshard({"convert", raw, path("zlib.vtkhdf"), "--compress", "zlib"}).exit_code, 0);
    std::ofstream(path("a.stl")) << "solid\nendsolid\n";

    for (const std::string name : {"zlib.vtu", "zlib.vtkhdf", "a.stl"}) {
        const auto result = meshard({"partition", path(name), "-n", "2", "-o", path("shards"), "--max-memory", "1G"});
        EXPECT_EQ(result.exit_code, 3) << name;
        EXPECT_NE(result.err.find("meshard convert"), std::string::npos) << result.err;
    }
}

TEST_F(PartitionInWindows, RefusesWhatItCannotKeep)
{
    const std::string source = write("tets.vtu", tet_cube(4));
    const auto refused = [&](std::vector<std::string> more, const std::string& text) {
        std::vector<std::string> arguments{"partition", source, "-n", "2", "-o", path("shards")};
        arguments.insert(arguments.end(), more.begin(), more.end());
        const auto result = meshard(arguments);
        EXPECT_EQ(result.exit_code, 2) << text;
        EXPECT_NE(result.err.find(text), std::string::npos) << result.err;
    };

    refused({"--max-memory", "1M"}, "is too little");
    refused({"--max-memory", "much"}, "a size such as 800M");
    refused({"--max-memory", "1G", "--contiguous"}, "--contiguous needs the whole mesh");
    refused({"--max-memory", "1G", "--ghosts", "nearest:4"}, "--ghosts nearest:4 needs the whole mesh");
}

TEST_F(PartitionInWindows, BalancesWeightsAndHasGhostsByPointsAndEdges)
{
    Mesh mesh = tet_cube(10);
    std::vector<double> cost(mesh.num_cells(), 1);
    std::fill_n(cost.begin(), 1000, 4.25);
    mesh.cell_data.push_back(DataArray::from("cost", cost));
    const std::string source = write("tets.vtu", mesh);

    for (const std::string rule : {"vertex", "edge"}) {
        const std::string shards = path(rule);
        const auto report = meshard_json({"partition", source, "-n", "3", "-o", shards, "--max-memory", "300M", "--ghosts", rule, "--ghost-layers", "2", "--weights", "points,array:cost",
                                          "--capacities", "1,2,1", "--quality"});

        EXPECT_LE(report["imbalances"]["points"], 1.03) << rule;
        EXPECT_LE(report["imbalances"]["array:cost"], 1.03) << rule;
        EXPECT_EQ(report["ghost_neighbors"], rule);
        expect_whole(shards, source);
        if (has_mpirun()) {
            const auto together = on_ranks(3, {"partition", source, "-n", "3", "-o", shards + "3", "--max-memory", "300M", "--ghosts", rule, "--ghost-layers", "2", "--weights",
                                               "points,array:cost", "--capacities", "1,2,1", "--quality"});
            ASSERT_EQ(together.exit_code, 0) << together.err;
            EXPECT_EQ(hashes(shards + "3"), hashes(shards));
        }
    }
}

TEST_F(PartitionInWindows, ThreadsDoNotChangeTheShards)
{
    const std::string source = write("tets.vtu", tet_cube(10));
    ASSERT_EQ(meshard({"partition", source, "-n", "6", "-o", path("one")}).exit_code, 0);
    ASSERT_EQ(meshard({"partition", source, "-n", "6", "-o", path("four"), "--threads", "4"}).exit_code, 0);

    EXPECT_EQ(hashes(path("one")), hashes(path("four")));
}

} // namespace
} // namespace meshard
