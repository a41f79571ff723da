// SPDX-License-Identifier: Apache-2.0
#include "io/shards/subdomain_io.h"
#include "partition/mesh/mesh_faults.h"
#include "tests/apps/program_test.h"
#include "tests/support/hub_meshes.h"
#include "tests/support/sample_meshes.h"

#include <cmath>
#include <limits>
#include <map>
#include <set>

namespace meshard {
namespace {

using PartitionVerb = ProgramTest;

TEST_F(PartitionVerb, MeasuresImbalanceByTheSharesThatCapacitiesAskFor)
{
    const auto report =
        meshard_json({"partition", write("box.vtu", cube(4)), "-n", "2", "--capacities", "1,3", "--dry-run"});
    EXPECT_DOUBLE_EQ(report["imbalance"].get<double>(), report["imbalances"]["cells"].get<double>());
    EXPECT_LE(report["imbalance"], 1.03);

    Mesh given = strip(3);
    given.cell_data = {DataArray::from("own", std::vector<std::int32_t>{0, 1, 2})};
    EXPECT_TRUE(fails_with(
        meshard({"partition", write("strip.vtp", given), "--dry-run", "--method", "array:own", "--capacities", "1,2"}),
        2, {"--capacities has 2 numbers for 3 parts"}));
}

TEST_F(PartitionVerb, TakesPartsFromNumbersOfOneComponentAlone)
{
    Mesh mesh = strip(3);
    mesh.cell_data = {DataArray::from("own", std::vector<std::int32_t>{0, 5, 5, 1, 5, 5, 2, 5, 5}, 3),
                      DataArray::from("big", std::vector<double>{0, 1, 3e9})};
    const auto file = write("strip.vtp", mesh);
    EXPECT_TRUE(
        fails_with(meshard({"partition", file, "--dry-run", "--method", "array:own"}), 3, {"'own' has 3 components"}));
    EXPECT_TRUE(fails_with(meshard({"partition", file, "--dry-run", "--method", "array:big"}), 3,
                           {"3e+09 in row 2", "1000000000"}));
}

TEST_F(PartitionVerb, ReportsPartsOfAStrip)
{
    auto report = meshard_json(
        {"partition", write("strip.vtp", strip(8)), "-n", "2", "-o", path("shards"), "--ghost-layers", "2"});

    EXPECT_EQ(report["edge_cut"], 1);
    EXPECT_EQ(report["communication_volume"], 2);
    EXPECT_EQ(report["imbalance"], 1.0);
    ASSERT_EQ(report["parts"].size(), 2u);
    std::int64_t num_points = 0;
    for (int p = 0; p < 2; ++p) {
        auto part = report["parts"][p];
        EXPECT_EQ(part["cells"], 4);
        EXPECT_EQ(part["ghost_cells"], 2);
        EXPECT_EQ(part["neighbors"], nlohmann::json({1 - p}));
        EXPECT_EQ(part["shared_faces"], nlohmann::json({1}));
        EXPECT_EQ(part["components"], 1);
        num_points += part["points"].get<std::int64_t>();
    }
    EXPECT_EQ(num_points, 18);
    EXPECT_GT(report["peak_rss_bytes"], 1 << 20);
    double sum = 0;
    for (const char* stage : {"read", "graph", "partition", "ghosts", "write"}) {
        EXPECT_GE(report["seconds"][stage], 0.0) << stage;
        sum += report["seconds"][stage].get<double>();
    }
    EXPECT_GE(report["seconds"]["total"].get<double>(), sum);
}

TEST_F(PartitionVerb, PrintsItsReportAloneWhateverLibrariesPrint)
{
    const std::string file = source_path("tests/data/odd/verbs/zero_weights.vtu");

    auto report = meshard_json({"partition", file, "-n", "8", "--weights", "array:one", "-o", path("shards")});

    EXPECT_EQ(report["num_parts"], 8);
}

TEST_F(PartitionVerb, WritesNamesThatAreNotUtf8)
{
    for (const char* name : {"latin1", "latin1_undeclared", "strings_latin1"}) {
        SCOPED_TRACE(name);
        const std::string file = source_path("tests/data/odd/xml/" + std::string(name) + ".vtu"), shards = path(name);

        EXPECT_TRUE(meshard_json({"partition", file, "-n", "2", "-o", shards}).is_object());
        EXPECT_EQ(meshard({"check", shards}).exit_code, 0);
        EXPECT_EQ(meshard({"merge", shards, "-o", path("whole.vtu"), "--verify", file}).exit_code, 0);
    }
}

TEST_F(PartitionVerb, SaysOnceHowAFileIsRead)
{
    const ProgramResult result = meshard(
        {"partition", source_path("tests/data/odd/xml/latin1_undeclared.vtu"), "-n", "2", "-o", path("shards")});

    EXPECT_EQ(result.exit_code, 0);
    const auto first = result.err.find("are read as Latin-1");
    ASSERT_NE(first, std::string::npos) << result.err;
    EXPECT_EQ(result.err.find("are read as Latin-1", first + 1), std::string::npos) << result.err;
}

TEST_F(PartitionVerb, WritesShardsThatPassTheirCheck)
{
    for (const auto& [name, mesh] : sample_meshes()) {
        if (mesh.num_rows() < 3) continue;
        const std::string source = write(name + extension_of(mesh.kind), mesh);
        const std::string shards = path(name);

        const ProgramResult result = meshard({"partition", source, "-n", "3", "-o", shards});

        EXPECT_EQ(result.exit_code, 0) << name << ": " << result.err;
        if (describe(find_faults(mesh)).empty())
            EXPECT_EQ(result.err, "") << name;
        else
            EXPECT_TRUE(result.err.find("used by no cell") != std::string::npos) << name << ": " << result.err;
        const ProgramResult check = meshard({"check", shards});
        EXPECT_EQ(check.exit_code, 0) << name << ": " << check.out << check.err;
        const ProgramResult merge = meshard({"merge", shards, "--verify", source});
        EXPECT_EQ(merge.exit_code, 0) << name << ": " << merge.err;
    }
}

TEST_F(PartitionVerb, CompressesItsPiecesOnRequest)
{
    const std::string source = write("cube.vtu", cube(12));
    std::map<std::string, std::uintmax_t> sizes;
    for (const std::string kind : {"none", "zlib", "lz4"}) {
        ASSERT_EQ(meshard({"partition", source, "-n", "2", "-o", path(kind), "--compress", kind}).exit_code, 0);
        sizes[kind] = std::filesystem::file_size(path(kind + "/pieces/mesh_0000.vtu"));
        EXPECT_EQ(meshard({"check", path(kind)}).exit_code, 0);
        EXPECT_EQ(
            meshard({"merge", path(kind), "--verify", source, "-o", path(kind + ".vtu"), "--compress", kind}).exit_code,
            0);
        EXPECT_EQ(difference(read_mesh(path(kind + ".vtu")), cube(12)), "");
    }
    EXPECT_LT(sizes["zlib"], sizes["lz4"]);
    EXPECT_LT(sizes["lz4"], sizes["none"]);
    EXPECT_TRUE(fails_with(meshard({"partition", source, "-n", "2", "-o", path("no"), "--compress", "lz5"}), 2,
                           {"Did you mean 'lz4'?"}));
}

TEST_F(PartitionVerb, WarnsOfFacesOfThreeCells)
{
    Mesh mesh = tet_cube(1);
    mesh.cell_data.clear();
    mesh.cells.push_row(std::vector<std::int32_t>{0, 3, 7, 5});  // a third cell at a face of the first two
    mesh.cell_types.push_back(10);

    const ProgramResult result = meshard({"partition", write("fan.vtu", mesh), "-n", "2", "-o", path("shards")});

    EXPECT_EQ(result.exit_code, 0);
    EXPECT_NE(result.err.find("to three cells or more"), std::string::npos) << result.err;
}

TEST_F(PartitionVerb, ShowsABarOnTerminals)
{
    if (!std::filesystem::exists("/usr/bin/script")) GTEST_SKIP() << "no terminal to be had";
    const std::string command =
        program_path() + " partition " + write("cube.vtu", cube(4)) + " -n 2 -o " + path("shards") + " > /dev/null";

    const ProgramResult result = run_program("/usr/bin/script", {"-qec", command, "/dev/null"});

    EXPECT_EQ(result.exit_code, 0) << result.out;
    for (const char* text : {"[#", "..] ", "% partition ...", "% write ..."})
        EXPECT_NE(result.out.find(text), std::string::npos) << text << " in " << result.out;
    EXPECT_EQ(meshard({"partition", path("cube.vtu"), "-n", "2", "-o", path("quiet")}).err, "");
}

TEST_F(PartitionVerb, NotesHowTheShardsWereMade)
{
    const std::string source = write("cube.vtu", cube(4));

    ASSERT_EQ(
        meshard({"partition", source, "-n", "3", "-o", path("shards"), "--seed", "7", "--imbalance", "1.1"}).exit_code,
        0);

    const Manifest manifest = read_manifest(path("shards"));
    EXPECT_EQ(manifest.info.source, source);
    EXPECT_EQ(manifest.info.method, "metis");
    EXPECT_EQ(manifest.info.seed, 7);
    EXPECT_FALSE(manifest.info.versions.empty());
    EXPECT_EQ(manifest.info.quality.parts.size(), 3u);
}

TEST_F(PartitionVerb, SpeaksAsDecomposeParDoes)
{
    const ProgramResult result = meshard({"partition", write("strip.vtp", strip(8)), "-n", "2", "-o", path("shards")});

    EXPECT_EQ(result.exit_code, 0);
    for (const char* text :
         {"Edge cut: 1 shared faces, communication volume: 2, imbalance: 1.0000 (allowed 1.03)",
          "Max number of cells = 4 (0% above average 4)", "Max number of neighbours = 1 (0% above average 1)",
          "Seconds: read ", "Peak memory: ", "mesh.pvtp"}) {
        EXPECT_NE(result.out.find(text), std::string::npos) << text << " in\n" << result.out;
    }
}

TEST_F(PartitionVerb, CutsCloudsByTheirPoints)
{
    auto report =
        meshard_json({"partition", write("cloud.vtp", random_cloud(200, 3)), "-n", "4", "-o", path("shards")});

    std::int64_t num_points = 0;
    for (auto part : report["parts"]) {
        EXPECT_EQ(part["cells"], 0);
        EXPECT_GT(part["ghost_points"], 0);
        num_points += part["points"].get<std::int64_t>();
    }
    EXPECT_EQ(num_points, 200);
    EXPECT_LE(report["imbalance"], 1.03);
    EXPECT_EQ(meshard({"check", path("shards")}).exit_code, 0);
}

TEST_F(PartitionVerb, CountsThePartsOfAGivenPartitionAsThoseThatAreAskedFor)
{
    auto far = cube(2);
    far.cell_data = {DataArray::from("own", std::vector<std::int32_t>{0, 0, 0, 0, 0, 9, 0, 0})};
    EXPECT_TRUE(fails_with(meshard({"partition", write("far.vtu", far), "--method", "array:own", "--dry-run"}), 2,
                           {"8 cells", "10 parts", "--allow-empty"}));
}

TEST_F(PartitionVerb, RefusesImpossibleOptions)
{
    const std::string source = write("strip.vtp", strip(8));
    const auto run = [&](std::vector<std::string> options) {
        options.insert(options.begin(), {"partition", source, "-o", path("shards")});
        return meshard(options);
    };

    EXPECT_TRUE(fails_with(run({"-n", "0"}), 2, {"-n is 0", "at least 1"}));
    EXPECT_TRUE(fails_with(run({"-n", "-3"}), 2, {"-n is -3"}));
    EXPECT_TRUE(
        fails_with(run({"-n", "2", "--method", "metsi"}), 2, {"unknown method 'metsi'", "Did you mean 'metis'?"}));
    EXPECT_TRUE(fails_with(run({"-n", "2", "--ghost-layers", "-1"}), 2, {"--ghost-layers is -1"}));
    EXPECT_TRUE(fails_with(run({"-n", "2", "--imbalance", "0.9"}), 2, {"--imbalance is 0.9"}));
    EXPECT_TRUE(fails_with(run({"-n", "9"}), 2, {"8 cells", "9 parts", "--allow-empty"}));
    EXPECT_EQ(entries(), std::vector<std::string>{"strip.vtp"});
}

TEST_F(PartitionVerb, LeavesPartsEmptyBesideAHeavyRow)
{
    auto mesh = strip(8);
    mesh.cell_data = {DataArray::from("w", std::vector<std::int32_t>{100, 1, 1, 1, 1, 1, 1, 1})};
    const auto file = write("heavy.vtp", mesh);
    const std::vector<std::vector<std::string>> cuts{{"--levels", "2,2"}, {"-n", "9", "--allow-empty"}};
    for (auto words : cuts) {
        words.insert(words.begin(), {"partition", file, "--weights", "array:w", "--dry-run"});
        const auto result = meshard(words);
        EXPECT_EQ(result.exit_code, 0) << result.err;
        EXPECT_NE(result.err.find("above the allowed imbalance"), std::string::npos) << result.err;
    }
}

TEST_F(PartitionVerb, LeavesPartsEmptyWhenAllowed)
{
    auto report =
        meshard_json({"partition", write("strip.vtp", strip(3)), "-n", "5", "-o", path("shards"), "--allow-empty"});

    std::multiset<int> sizes;
    for (auto part : report["parts"]) sizes.insert(part["cells"].get<int>());
    EXPECT_EQ(sizes, (std::multiset<int>{0, 0, 1, 1, 1}));
    EXPECT_EQ(meshard({"check", path("shards")}).exit_code, 0);
    EXPECT_EQ(meshard({"merge", path("shards"), "--verify", path("strip.vtp")}).exit_code, 0);
}

TEST_F(PartitionVerb, RefusesAnOutputThatExists)
{
    const std::string source = write("strip.vtp", strip(8));
    std::filesystem::create_directory(path("shards"));
    write_text("file", "kept");

    EXPECT_TRUE(fails_with(meshard({"partition", source, "-n", "2", "-o", path("shards")}), 3, {"shards", "exists"}));
    EXPECT_TRUE(fails_with(meshard({"partition", source, "-n", "2", "-o", path("file")}), 3, {"exists"}));
    EXPECT_TRUE(std::filesystem::is_empty(path("shards")));
    EXPECT_EQ(content_of(path("file")), "kept");
}

TEST_F(PartitionVerb, LooksAtTheOutputBeforeAnyWork)
{
    std::filesystem::create_directory(path("shards"));

    EXPECT_TRUE(fails_with(meshard({"partition", path("none.vtp"), "-n", "2", "-o", path("shards")}), 3, {"exists"}));
}

TEST_F(PartitionVerb, RefusesAnOutputThatCannotBeMade)
{
    const std::string source = write("strip.vtp", strip(8));
    write_text("file", "kept");

    EXPECT_TRUE(fails_with(meshard({"partition", source, "-n", "2", "-o", path("file/shards")}), 3,
                           {"cannot be made", "is no folder"}));
    EXPECT_EQ(entries(), (std::vector<std::string>{"file", "strip.vtp"}));
}

TEST_F(PartitionVerb, RefusesAnOutputWithoutPermission)
{
    if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
    const std::string source = write("strip.vtp", strip(8));

    std::filesystem::create_directory(path("locked"));
    std::filesystem::permissions(path("locked"),
                                 std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
    EXPECT_TRUE(
        fails_with(meshard({"partition", source, "-n", "2", "-o", path("locked/shards")}), 3, {"no permission"}));
}

TEST_F(PartitionVerb, LeavesNothingWhenTheDiskIsFull)
{
    const std::string source = write("cube.vtu", cube(12));

    const ProgramResult result = meshard({"partition", source, "-n", "2", "-o", path("a/b/shards")}, full_disk());

    EXPECT_TRUE(fails_with(result, 3, {"meshard partition: "}));
    EXPECT_EQ(entries(), std::vector<std::string>{"cube.vtu"});
}

TEST_F(PartitionVerb, LeavesNothingWhenInterrupted)
{
    const std::string source = write("cube.vtu", cube(24));
    ProgramOptions options;
    options.interrupt_when = [this] {
        const auto names = entries();
        return std::ranges::any_of(names,
                                   [](const std::string& name) { return name.find(".partial-") != std::string::npos; });
    };

    const ProgramResult result = meshard({"partition", source, "-n", "400", "-o", path("shards")}, options);

    EXPECT_TRUE(fails_with(result, 130, {"meshard partition: interrupted"}));
    EXPECT_EQ(entries(), std::vector<std::string>{"cube.vtu"});
}

TEST_F(PartitionVerb, LeavesNothingThatLooksFinishedWhenKilled)
{
    const std::string source = write("cube.vtu", cube(30));
    int num_killed = 0;
    for (int i = 1; i <= 12; ++i) {
        const ProgramResult result =
            run_program("/usr/bin/timeout", {"-s", "KILL", std::to_string(0.03 * i), program_path(), "partition",
                                             source, "-n", "8", "-o", path("shards")});
        if (result.exit_code == 0) {
            EXPECT_EQ(meshard({"check", path("shards")}).exit_code, 0);
            break;
        }
        ++num_killed;
        EXPECT_FALSE(std::filesystem::exists(path("shards")) && meshard({"check", path("shards")}).exit_code != 0)
            << "killed after " << 0.03 * i << " s";
        for (const std::string& name : entries())
            if (name.starts_with("shards.partial-")) std::filesystem::remove_all(path(name));
        std::filesystem::remove_all(path("shards"));  // killed after all was done
    }
    EXPECT_GT(num_killed, 0);
}

TEST_F(PartitionVerb, RefusesCoordinatesThatAreNoNumbers)
{
    Mesh mesh = strip(8);
    mesh.points.mutable_values<float>()[4] = std::numeric_limits<float>::quiet_NaN();

    const ProgramResult result = meshard({"partition", write("strip.vtp", mesh), "-n", "2", "-o", path("shards")});

    EXPECT_TRUE(fails_with(result, 3, {"strip.vtp has 1 coordinate that is NaN"}));
    EXPECT_EQ(entries(), std::vector<std::string>{"strip.vtp"});
}

TEST_F(PartitionVerb, WarnsOfNaNInAFieldAndKeepsIt)
{
    Mesh mesh = strip(8);
    mesh.cell_data.push_back(DataArray::from("p", std::vector<double>{1, NAN, 3, 4, NAN, 6, 7, 8}));
    const std::string source = write("strip.vtp", mesh);

    const ProgramResult result = meshard({"partition", source, "-n", "2", "-o", path("shards")});

    EXPECT_TRUE(fails_with(result, 0, {"warning", "cell array 'p' has 2 NaN"}));
    EXPECT_EQ(meshard({"check", path("shards")}).exit_code, 0);
    EXPECT_EQ(meshard({"merge", path("shards"), "--verify", source}).exit_code, 0);
}

TEST_F(PartitionVerb, TellsOfCellsThatAreApart)
{
    const std::string source = write("apart.vtu", exploded(cube(3)));
    const std::string words = "27 cells share no face with another";

    const ProgramResult whole = meshard({"partition", source, "-n", "2", "-o", path("shards")});
    const ProgramResult windows =
        meshard({"partition", source, "-n", "2", "-o", path("windows"), "--max-memory", "200M"});

    EXPECT_TRUE(fails_with(whole, 0,
                           {"warning", words + ", and 152 points lie at the place of another",
                            "meshard convert " + source + " OUT --join-points 0"}));
    EXPECT_TRUE(fails_with(windows, 0, {"warning", words}));
    EXPECT_EQ(meshard({"partition", write("cube.vtu", cube(3)), "-n", "2", "-o", path("joined")}).err, "");
}

TEST_F(PartitionVerb, TellsOfHubs)
{
    const std::string source = write("star.vtu", star_of_lines(500));

    for (const char* memory : {"", "200M"}) {
        std::vector<std::string> words{"partition", source, "-n", "3", "-o", path(std::string("shards") + memory)};
        if (*memory != 0) words.insert(words.end(), {"--max-memory", memory});
        EXPECT_TRUE(fails_with(meshard(words), 0, {"warning", "500 cells share one face", "--ghosts vertex"}));
        EXPECT_EQ(meshard({"check", path(std::string("shards") + memory)}).exit_code, 0);
    }
}

TEST_F(PartitionVerb, RefusesDamagedFiles)
{
    const std::string whole = content_of(write("cube.vtu", cube(4)));
    const std::string cut = write_text("cut.vtu", whole.substr(0, whole.size() / 2));

    EXPECT_TRUE(fails_with(meshard({"partition", cut, "-n", "2", "-o", path("shards")}), 3, {"cut.vtu"}));
    EXPECT_EQ(entries(), (std::vector<std::string>{"cube.vtu", "cut.vtu"}));
}

TEST_F(PartitionVerb, GivesTheSameShardsForTheSameSeed)
{
    const std::string source = write("cube.vtu", cube(8));
    for (const char* name : {"a", "b"}) {
        ASSERT_EQ(meshard({"partition", source, "-n", "5", "-o", path(name), "--seed", "3"}).exit_code, 0);
    }

    for (int p = 0; p < 5; ++p) {
        const std::string piece = "/pieces/mesh_000" + std::to_string(p) + ".vtu";
        EXPECT_EQ(content_of(path("a") + piece), content_of(path("b") + piece)) << p;
    }
}

TEST_F(PartitionVerb, CutsByEveryMethodAndRule)
{
    const std::string source = write("tets.vtu", tet_cube(4));
    int i = 0;
    for (const std::vector<std::string>& options : std::vector<std::vector<std::string>>{
             {"-n", "4", "--method", "recursive"},
             {"-n", "4", "--method", "rcb", "--ghosts", "vertex"},
             {"-n", "4", "--method", "hilbert", "--ghosts", "edge", "--ghost-layers", "2"},
             {"-n", "4", "--method", "auto", "--contiguous", "--ghosts", "radius:0.3"},
             {"--levels", "2,2", "--quality", "--ghosts", "nearest:6"},
             {"-n", "3", "--capacities", "1,1,2", "--objective", "ghosts"},
             {"-n", "4", "--weights", "cells,points,array:label"}}) {
        SCOPED_TRACE(options.back());
        const std::string shards = path("shards" + std::to_string(i++));
        std::vector<std::string> arguments{"partition", source, "-o", shards};
        arguments.insert(arguments.end(), options.begin(), options.end());

        const ProgramResult result = meshard(arguments);

        ASSERT_EQ(result.exit_code, 0) << result.err;
        const ProgramResult check = meshard({"check", shards});
        EXPECT_EQ(check.exit_code, 0) << check.out << check.err;
        EXPECT_EQ(meshard({"merge", shards, "--verify", source}).exit_code, 0);
    }
}

TEST_F(PartitionVerb, TakesPartitionsOfOthers)
{
    Mesh mesh = strip(6);
    mesh.cell_data.push_back(DataArray::from("mine", std::vector<std::int32_t>{0, 0, 1, 1, 2, 2}));
    const std::string source = write("strip.vtp", mesh);
    const std::string parts = write_text("strip.part.2", "0\n0\n0\n0\n1\n1\n");

    auto by_array = meshard_json({"partition", source, "--method", "array:mine", "--dry-run"});
    auto by_file = meshard_json({"partition", source, "--method", "file:" + parts, "-o", path("shards")});

    EXPECT_EQ(by_array["num_parts"], 3);
    EXPECT_EQ(by_array["edge_cut"], 2);
    EXPECT_EQ(by_file["parts"][0]["cells"], 4);  // as given, though above the bound
    EXPECT_EQ(by_file["method"], "file:" + parts);
    EXPECT_TRUE(
        fails_with(meshard({"partition", source, "--method", "file:" + write_text("short", "0 1"), "--dry-run"}), 3,
                   {"has 2 rows", "6 cells"}));
    EXPECT_TRUE(fails_with(meshard({"partition", source, "--method", "array:mien", "--dry-run"}), 3, {"mine"}));
}

TEST_F(PartitionVerb, WritesNothingInADryRunButItsTableAndPicture)
{
    const std::string source = write("cube.vtu", cube(4));

    const ProgramResult result = meshard(
        {"partition", source, "-n", "4", "--dry-run", "--csv", path("parts.csv"), "--preview", path("parts.png")});

    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.out.find("this was a dry run"), std::string::npos);
    EXPECT_EQ(entries(), (std::vector<std::string>{"cube.vtu", "parts.csv", "parts.png"}));
    const std::string table = content_of(path("parts.csv"));
    EXPECT_EQ(std::ranges::count(table, '\n'), 5);
    EXPECT_TRUE(table.starts_with("part,cells,points,ghost_cells,"));
}

TEST_F(PartitionVerb, CutsShardsAgainWithoutTheirSource)
{
    const std::string source = write("tets.vtu", tet_cube(4));
    ASSERT_EQ(meshard({"partition", source, "-n", "3", "-o", path("three")}).exit_code, 0);
    std::filesystem::rename(source, path("kept.vtu"));

    auto report = meshard_json({"repartition", path("three"), "-n", "5", "-o", path("five"), "--ghost-layers", "2"});
    auto by_cost = meshard_json({"repartition", path("three"), "-n", "2", "--cost", "4,1,1", "--dry-run"});

    EXPECT_EQ(report["num_parts"], 5);
    EXPECT_EQ(meshard({"check", path("five")}).exit_code, 0);
    EXPECT_EQ(meshard({"merge", path("five"), "--verify", path("kept.vtu")}).exit_code, 0);
    EXPECT_LE(by_cost["imbalances"]["cost"], 1.05);
    EXPECT_GT(by_cost["imbalance"], 1.2);  // a part of dear cells has few
    EXPECT_TRUE(fails_with(meshard({"repartition", path("three"), "-n", "2", "--cost", "1,2", "--dry-run"}), 2,
                           {"--cost is '1,2'", "3 numbers"}));
}

TEST_F(PartitionVerb, RefusesContradictions)
{
    const std::string source = write("strip.vtp", strip(8));
    const auto run = [&](std::vector<std::string> options) {
        options.insert(options.begin(), {"partition", source, "-o", path("shards")});
        return meshard(options);
    };

    EXPECT_TRUE(fails_with(run({"-n", "3", "--levels", "2,2"}), 2, {"-n is 3", "make 4 parts"}));
    EXPECT_TRUE(fails_with(run({"-n", "3", "--capacities", "1,2"}), 2, {"2 numbers", "3 parts"}));
    EXPECT_TRUE(fails_with(run({"-n", "2", "--objective", "speed"}), 2, {"expected cut, ghosts or both"}));
    EXPECT_TRUE(fails_with(run({"-n", "2", "--ghosts", "faces"}), 2, {"expected face, edge, vertex"}));
    EXPECT_TRUE(fails_with(run({"-n", "2", "--weights", "volume"}), 2, {"known are cells, points, faces"}));
    EXPECT_TRUE(fails_with(run({"-n", "2", "--quality", "--no-refine"}), 2, {"exclude each other"}));
    EXPECT_TRUE(fails_with(meshard({"partition", source, "-n", "2"}), 2, {"-o is missing"}));
}

}  // namespace
}  // namespace meshard
