// SPDX-License-Identifier: Apache-2.0
// meshard partition for meshes that no process holds as a whole.
#include "partition/cut/geometric_partitioner.h"
#include "tests/apps/program_test.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/temporary_folder.h"
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
        arguments.insert(arguments.begin(),
                         {"mpirun", "--oversubscribe", "-np", std::to_string(num_ranks), program_path()});
        return run_program("/usr/bin/env", arguments);
    }
};

TEST_F(PartitionInWindows, LosesNothing)
{
    for (const auto& [name, mesh] : sample_meshes()) {
        if (mesh.num_rows() < 3) continue;
        SCOPED_TRACE(name);
        const std::string source = write(name + extension_of(mesh.kind), mesh);

        const auto result =
            meshard({"partition", source, "-n", "3", "-o", path(name), "--max-memory", "200M", "--ghost-layers", "2"});

        ASSERT_EQ(result.exit_code, 0) << result.err;
        expect_whole(path(name), source);
    }
}

TEST_F(PartitionInWindows, StaysWithinTheMemoryAllowed)
{
    const std::string source = write("cube.vtu", cube(64));  // 262144 cells, 25 MB
    constexpr double megabyte = 1048576;
    // What the program takes for nothing: 30 MB, or some 160 with LibTorch.
    const auto program =
        meshard_json({"partition", write("small.vtu", cube(4)), "-n", "2", "--dry-run"})["peak_rss_bytes"]
            .get<double>();
    const auto allowed = std::ceil(program / megabyte) + 65;

    const auto whole = meshard_json({"partition", source, "-n", "16", "--dry-run"});
    const auto bounded = meshard_json({"partition", source, "-n", "16", "-o", path("bounded"), "--max-memory",
                                       std::to_string(static_cast<int>(allowed)) + "M"});

    EXPECT_GT(whole["peak_rss_bytes"], (allowed + 15) * megabyte);  // else this shows nothing
    EXPECT_LE(bounded["peak_rss_bytes"], allowed * megabyte);
    EXPECT_LE(bounded["imbalance"], 1.03);
    const auto check = meshard({"check", path("bounded")});
    EXPECT_EQ(check.exit_code, 0) << check.out << check.err;
}

TEST_F(PartitionInWindows, WritesTheSameShardsOnAnyNumberOfRanks)
{
    if (!has_mpirun()) GTEST_SKIP() << "mpirun is not installed";
    const std::string source = write("tets.vtu", tet_cube(16));
    ASSERT_EQ(meshard({"partition", source, "-n", "5", "-o", path("one"), "--max-memory", "1G", "--ghost-layers", "2"})
                  .exit_code,
              0);
    const auto expected = hashes(path("one"));

    for (const int num_ranks : {2, 3}) {
        const auto shards = path("on" + std::to_string(num_ranks));
        const auto result = on_ranks(
            num_ranks, {"partition", source, "-n", "5", "-o", shards, "--max-memory", "1G", "--ghost-layers", "2"});
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
    for (const auto& entry : std::filesystem::directory_iterator(path("")))
        EXPECT_EQ(entry.path().filename().string().find("shards"), std::string::npos);
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
    refused({"--max-memory", "60M", "--preview", path("a.png")}, "is too little");
}

// Ways to cut that go by more than the faces of cells: checked, put together again, and the same on several ranks.
TEST_F(PartitionInWindows, CutsInEveryWay)
{
    const std::string tets = write("tets.vtu", tet_cube(10)), cloud = write("cloud.vtp", random_cloud(5000, 4)),
                      vertices = write("vertices.vtu", vertex_cells(700));
    const std::vector<std::pair<std::string, std::vector<std::string>>> ways{
        {tets, {"-n", "7", "--contiguous", "--method", "hilbert"}},
        {tets, {"--levels", "2,3", "--ghosts", "radius:0.2", "--objective", "ghosts"}},
        {tets, {"-n", "5", "--ghosts", "nearest:6", "--ghost-layers", "2", "--method", "auto", "--contiguous"}},
        {tets, {"-n", "5", "--method", "rcb", "--no-refine", "--ghosts", "vertex"}},
        {tets, {"--method", "file:" + path("tets.part"), "--refine"}},
        {tets, {"--method", "file:" + path("tets.part"), "--contiguous", "-n", "4"}},
        {tets, {"--method", "file:" + path("tets.part"), "--quality", "--weights", "points"}},
        {cloud, {"-n", "6", "--contiguous", "--ghost-layers", "2"}},
        {cloud, {"-n", "3", "--ghosts", "radius:0.1", "--weights", "array:weight", "--method", "recursive"}},
        {vertices, {"-n", "3", "--ghosts", "nearest:3"}}};
    auto weighted = random_cloud(5000, 4);
    std::vector<float> weights(5000, 1);
    std::fill_n(weights.begin(), 900, 3.5f);
    weighted.point_data.push_back(DataArray::from("weight", weights));
    write("cloud.vtp", weighted);
    std::ofstream parts(path("tets.part"));
    for (int i = 0; i < 6000; ++i) parts << (i < 1000 ? 0 : i < 3000 ? 1 : i % 50 == 0 ? 0 : 2) << '\n';
    parts.close();
    int number = 0;
    for (const auto& [source, options] : ways) {
        std::vector<std::string> words{"partition",    source, "-o", path("one" + std::to_string(++number)),
                                       "--max-memory", "300M"};
        words.insert(words.end(), options.begin(), options.end());
        SCOPED_TRACE(source + ' ' + options[1] + ' ' + options[2]);

        const auto report = meshard_json(words);

        EXPECT_FALSE(report["imbalances"].empty());
        for (const auto& imbalance : report["imbalances"]) EXPECT_LE(imbalance, 1.03);
        expect_whole(path("one" + std::to_string(number)), source);
        if (!has_mpirun()) continue;
        for (const int num_ranks : {2, 3}) {
            words[3] = path("on" + std::to_string(num_ranks) + "_" + std::to_string(number));
            const auto result = on_ranks(num_ranks, words);
            ASSERT_EQ(result.exit_code, 0) << result.err;
            EXPECT_EQ(hashes(words[3]), hashes(path("one" + std::to_string(number)))) << num_ranks;
        }
    }
}

TEST_F(PartitionInWindows, SaysWhichPartsCannotBeWhole)
{
    const std::string source = write("islands.vtu", islands(3, 20));

    const auto result =
        meshard({"partition", source, "-n", "2", "-o", path("shards"), "--max-memory", "1G", "--contiguous"});

    EXPECT_EQ(result.exit_code, 0);
    EXPECT_NE(result.err.find("could not be made connected"), std::string::npos) << result.err;
}

TEST_F(PartitionInWindows, TakesAPartitionFromAnArray)
{
    auto mesh = tet_cube(6);
    std::vector<std::int32_t> parts(mesh.num_cells());
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i] = static_cast<std::int32_t>(i % 4);
    mesh.cell_data.push_back(DataArray::from("owner", parts));
    const std::string source = write("tets.vtu", mesh);

    ASSERT_EQ(meshard({"partition", source, "--method", "array:owner", "-o", path("whole")}).exit_code, 0);
    ASSERT_EQ(meshard({"partition", source, "--method", "array:owner", "-o", path("bounded"), "--max-memory", "1G"})
                  .exit_code,
              0);
    const auto few =
        meshard({"partition", source, "--method", "array:owner", "-n", "2", "-o", path("few"), "--max-memory", "1G"});

    EXPECT_EQ(hashes(path("bounded")), hashes(path("whole")));
    EXPECT_EQ(few.exit_code, 2);
    EXPECT_NE(few.err.find("names part 3; -n is 2"), std::string::npos) << few.err;
}

// What is asked of a whole mesh and of windows: the same files. Each run has a folder OUT of its own.
class SameInWindows : public PartitionInWindows {
protected:
    // Writes the shards to OUT, and says what `of` makes of it for the whole mesh, in little memory, and on 2 and 3
    // ranks.
    template <class F>
    void expect_same(const std::string& source, const std::vector<std::string>& options, F&& of)
    {
        const auto run = [&](const std::string& out, int num_ranks, bool is_bounded) {
            std::vector<std::string> words{"partition", source, "-o", path(out)};
            for (auto option : options) {
                if (option == "OUT.png") option = path(out) + ".png";
                words.push_back(option);
            }
            if (is_bounded) words.insert(words.end(), {"--max-memory", "300M"});
            const auto result = num_ranks == 1 ? meshard(words) : on_ranks(num_ranks, words);
            EXPECT_EQ(result.exit_code, 0) << result.err;
            return of(path(out));
        };
        const auto name = "run" + std::to_string(++number_);
        const auto expected = run(name + "whole", 1, false);
        EXPECT_TRUE(run(name + "bounded", 1, true) == expected) << "in little memory";
        if (!has_mpirun()) return;
        EXPECT_TRUE(run(name + "two", 2, true) == expected) << "on 2 ranks";
        EXPECT_TRUE(run(name + "three", 3, false) == expected) << "on 3 ranks";
    }

    static std::string bytes_of(const std::filesystem::path& file)
    {
        const auto bytes = read_bytes(file);
        EXPECT_FALSE(bytes.empty()) << file;
        return bytes;
    }

private:
    int number_ = 0;
};

TEST_F(SameInWindows, PiecesOfAPartitionFile)
{
    const std::string source = write("tets.vtu", tet_cube(7)), cloud = write("cloud.vtp", random_cloud(2058, 4));
    std::ofstream parts(path("a.part")), foam(path("cellDecomposition"));
    foam << "FoamFile { version 2.0; format ascii; class labelList; }\n2058\n(\n";
    for (int i = 0; i < 2058; ++i) {
        parts << i * i % 4 << '\n';
        foam << i * i % 4 << '\n';
    }
    foam << ")\n";
    parts.close();
    foam.close();

    for (const std::string file : {"a.part", "cellDecomposition"}) {
        expect_same(source, {"--method", "file:" + path(file), "--ghosts", "vertex"},
                    [&](const std::string& out) { return hashes(out); });
        expect_same(cloud, {"--method", "file:" + path(file), "-n", "6"},
                    [&](const std::string& out) { return hashes(out); });
    }
}

TEST_F(SameInWindows, DumpsForOtherPrograms)
{
    for (const Mesh& mesh : {tet_cube(7), random_cloud(700, 4), strip(90)}) {
        Mesh given = mesh;
        std::vector<std::int32_t> parts(mesh.num_rows());
        for (std::size_t i = 0; i < parts.size(); ++i) parts[i] = static_cast<std::int32_t>(3 * i / parts.size());
        (mesh.is_point_cloud() ? given.point_data : given.cell_data).push_back(DataArray::from("owner", parts));
        const std::string source = write("mesh" + std::to_string(mesh.num_rows()) + extension_of(mesh.kind), given);
        expect_same(source, {"--method", "array:owner", "--dump", "metis,foam"}, [](const std::string& out) {
            std::string all;
            for (const std::string file : {"mesh.graph", "mesh.graph.part.3", "cellDecomposition", "decomposeParDict"})
                all += bytes_of(out + "/" + file);
            return all;
        });
    }
}

TEST_F(SameInWindows, PicturesOfTheParts)
{
    for (const auto& [name, mesh] : sample_meshes()) {
        if (mesh.num_rows() < 3) continue;
        SCOPED_TRACE(name);
        Mesh given = mesh;
        std::vector<std::int32_t> parts(mesh.num_rows());
        for (std::size_t i = 0; i < parts.size(); ++i) parts[i] = static_cast<std::int32_t>(3 * i / parts.size());
        (mesh.is_point_cloud() ? given.point_data : given.cell_data).push_back(DataArray::from("owner", parts));
        const std::string source = write(name + extension_of(mesh.kind), given);
        expect_same(source, {"--method", "array:owner", "--preview", "OUT.png"},
                    [](const std::string& out) { return bytes_of(out + ".png"); });
    }
}

// Windows have 200000 cells where memory is not bounded: here are two.
TEST_F(SameInWindows, DumpsAndPicturesAcrossWindows)
{
    Mesh mesh = tet_cube(34);
    mesh.point_data.clear();
    std::vector<std::int32_t> parts(mesh.num_cells());
    const auto centroids = row_centroids(mesh);
    for (std::size_t i = 0; i < parts.size(); ++i)
        parts[i] = (centroids[3 * i] > 0.3f) + 2 * (centroids[3 * i + 1] > 0.6f);
    mesh.cell_data = {DataArray::from("owner", parts)};
    const std::string source = write("tets.vtu", mesh);

    expect_same(
        source, {"--method", "array:owner", "--dump", "metis", "--preview", "OUT.png"}, [](const std::string& out) {
            return bytes_of(out + "/mesh.graph") + bytes_of(out + "/mesh.graph.part.4") + bytes_of(out + ".png");
        });
}

TEST_F(SameInWindows, FilesThatCannotBeMapped)
{
    if (!has_mpirun()) GTEST_SKIP() << "mpirun is not installed";
    const std::string raw = write("raw.vtu", tet_cube(5)), packed = path("zlib.vtu");
    ASSERT_EQ(meshard({"convert", raw, packed, "--compress", "zlib"}).exit_code, 0);
    ASSERT_EQ(on_ranks(2, {"partition", raw, "-n", "4", "-o", path("raw")}).exit_code, 0);

    const auto result = on_ranks(2, {"partition", packed, "-n", "4", "-o", path("packed")});

    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto first = result.err.find("every rank holds the whole mesh");
    ASSERT_NE(first, std::string::npos) << result.err;
    EXPECT_EQ(result.err.find("every rank holds", first + 1), std::string::npos) << result.err;
    EXPECT_EQ(hashes(path("packed")), hashes(path("raw")));
    expect_whole(path("packed"), packed);
}

TEST_F(PartitionInWindows, SaysWhatIsWrongWithAPartitionFile)
{
    const std::string source = write("tets.vtu", tet_cube(3));
    std::ofstream(path("short.part")) << "0\n1\n";
    std::ofstream(path("bad.part")) << "0\nx\n";
    const auto refused = [&](const std::string& file, int code, const std::string& text) {
        const std::vector<std::string> words{"partition",          source, "--method",
                                             "file:" + path(file), "-o",   path("shards")};
        auto bounded = words;
        bounded.insert(bounded.end(), {"--max-memory", "300M"});
        for (const auto& result :
             {meshard(words), meshard(bounded), has_mpirun() ? on_ranks(2, words) : meshard(bounded)}) {
            EXPECT_EQ(result.exit_code, code) << result.err;
            const auto first = result.err.find(text);
            ASSERT_NE(first, std::string::npos) << result.err;
            EXPECT_EQ(result.err.find(text, first + 1), std::string::npos) << result.err;
        }
        EXPECT_FALSE(std::filesystem::exists(path("shards")));
    };

    refused("short.part", 3, "has 2 rows, the mesh has 162 cells to cut");
    refused("bad.part", 3, "has 'x");
    refused("none.part", 3, "cannot be opened");
}

// A cut as of a whole mesh has the same pieces, byte for byte: cuts in windows are given as an array.
TEST_F(PartitionInWindows, WritesThePiecesOfAWholeMeshWithTheSameOwners)
{
    for (const bool is_cloud : {false, true})
        for (const std::string rule : {"face", "radius:0.13", "nearest:7"}) {
            auto mesh = is_cloud ? random_cloud(3000, 8) : tet_cube(9);
            std::vector<std::int32_t> parts(mesh.num_rows());
            const auto centroids = row_centroids(mesh);
            for (std::size_t i = 0; i < parts.size(); ++i)
                parts[i] = (centroids[3 * i] > 0.4f) + 2 * (centroids[3 * i + 1] > 0.55f);
            (is_cloud ? mesh.point_data : mesh.cell_data).push_back(DataArray::from("owner", parts));
            const std::string name = (is_cloud ? "cloud" : "tets") + rule.substr(0, 3),
                              source = write(name + extension_of(mesh.kind), mesh);

            for (const auto& [folder, memory] : {std::pair{"whole", false}, {"bounded", true}}) {
                std::vector<std::string> words{"partition",         source,     "--method", "array:owner",    "-o",
                                               path(folder + name), "--ghosts", rule,       "--ghost-layers", "2"};
                if (memory) words.insert(words.end(), {"--max-memory", "300M"});
                ASSERT_EQ(meshard(words).exit_code, 0) << name;
            }

            EXPECT_EQ(hashes(path("bounded" + name)), hashes(path("whole" + name))) << name;
        }
}

TEST_F(PartitionInWindows, StaysWithinTheMemoryAllowedForClouds)
{
    const std::string source = write("cloud.vtp", random_cloud(400000, 1));
    constexpr double megabyte = 1048576;
    const auto program =
        meshard_json({"partition", write("small.vtu", cube(4)), "-n", "2", "--dry-run"})["peak_rss_bytes"]
            .get<double>();
    const auto allowed = std::ceil(program / megabyte) + 80;

    for (const std::string rule : {"face", "radius:0.02", "nearest:12"}) {
        const auto bounded =
            meshard_json({"partition", source, "-n", "16", "-o", path("bounded" + rule.substr(0, 3)), "--ghosts", rule,
                          "--max-memory", std::to_string(static_cast<int>(allowed)) + "M"});
        EXPECT_LE(bounded["peak_rss_bytes"], allowed * megabyte) << rule;
        EXPECT_LE(bounded["imbalance"], 1.03);
    }
    EXPECT_GT(meshard_json({"partition", source, "-n", "16", "--dry-run"})["peak_rss_bytes"],
              (allowed + 15) * megabyte);  // else this shows nothing
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
        const auto report = meshard_json({"partition", source, "-n", "3", "-o", shards, "--max-memory", "300M",
                                          "--ghosts", rule, "--ghost-layers", "2", "--weights", "points,array:cost",
                                          "--capacities", "1,2,1", "--quality"});

        EXPECT_LE(report["imbalances"]["points"], 1.03) << rule;
        EXPECT_LE(report["imbalances"]["array:cost"], 1.03) << rule;
        EXPECT_EQ(report["ghost_neighbors"], rule);
        expect_whole(shards, source);
        if (has_mpirun()) {
            const auto together = on_ranks(3, {"partition", source, "-n", "3", "-o", shards + "3", "--max-memory",
                                               "300M", "--ghosts", rule, "--ghost-layers", "2", "--weights",
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

}  // namespace
}  // namespace meshard
