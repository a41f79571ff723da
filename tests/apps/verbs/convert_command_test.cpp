// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoints/safetensors.h"
#include "partition/mesh/joined_points.h"
#include "tests/apps/program_test.h"
#include "tests/support/foam_case.h"
#include "tests/support/sample_meshes.h"

#include <cstring>

namespace meshard {
namespace {

class ConvertCommand : public ProgramTest {};

TEST_F(ConvertCommand, KeepsEverythingOnTheWayThroughEveryFormat)
{
    const Mesh mesh = mixed_cells();
    write("a.vtu", mesh);

    ASSERT_EQ(meshard({"convert", path("a.vtu"), path("b.vtkhdf"), "--compress", "zlib"}).exit_code, 0);
    ASSERT_EQ(meshard({"convert", path("b.vtkhdf"), path("c.vtu"), "--compress", "lz4"}).exit_code, 0);
    ASSERT_EQ(meshard({"convert", path("c.vtu"), path("d.vtu")}).exit_code, 0);

    EXPECT_EQ(content_of(path("d.vtu")), content_of(path("a.vtu")));
}

TEST_F(ConvertCommand, WritesIndexesOfPieces)
{
    const std::string volume = write("a.vtu", mixed_cells()), surface = write("a.vtp", sphere(5));
    ASSERT_EQ(meshard({"partition", surface, "-n", "3", "-o", path("shards")}).exit_code, 0);

    ASSERT_EQ(meshard({"convert", volume, path("b.pvtu"), "--compress", "zlib"}).exit_code, 0);
    const auto report = meshard_json({"convert", path("shards"), path("c.pvtp")});

    EXPECT_EQ(difference(read_mesh(path("b.pvtu")), mixed_cells()), "");
    const Mesh merged = read_mesh(path("c.pvtp"));
    EXPECT_EQ(merged.cells, sphere(5).cells);
    EXPECT_EQ(entries(), (std::vector<std::string>{"a.vtp", "a.vtu", "b.pvtu", "b_0000.vtu", "c.pvtp", "c_0000.vtp",
                                                   "c_0001.vtp", "c_0002.vtp", "shards"}));
    EXPECT_GT(report["bytes"],
              std::filesystem::file_size(path("c_0000.vtp")) + std::filesystem::file_size(path("c_0001.vtp")));
    EXPECT_NE(content_of(path("c.pvtp")).find("GhostLevel=\"1\""), std::string::npos);
    EXPECT_TRUE(fails_with(meshard({"convert", volume, path("d.pvtp")}), 3, {"hexahedron, which .vtp cannot hold"}));
    EXPECT_EQ(entries().size(), 9u);
}

TEST_F(ConvertCommand, TurnsCheckpointsIntoOneAnother)
{
    const std::vector<float> values{1.5f, -2.0f, 3.25f, 0.0f, 5.0f, -6.5f};
    NamedArrays arrays;
    arrays.arrays.push_back(
        {"layer.weight", ArrayType::F32, {2, 3}, reinterpret_cast<const std::byte*>(values.data()), nullptr});
    write_safetensors(path("a.safetensors"), arrays);

    ASSERT_EQ(meshard({"convert", path("a.safetensors"), path("b.pt")}).exit_code, 0);
    ASSERT_EQ(meshard({"convert", path("b.pt"), path("c"), "--to", "safetensors"}).exit_code, 0);

    const NamedArrays back = read_safetensors(path("c"));
    const auto* weight = back.find("layer.weight");
    ASSERT_TRUE(weight);
    EXPECT_EQ(weight->shape, (std::vector<std::int64_t>{2, 3}));
    EXPECT_EQ(std::memcmp(weight->data, values.data(), values.size() * sizeof(float)), 0);
    EXPECT_TRUE(fails_with(meshard({"convert", path("b.pt"), path("d.pt"), "--compress", "zlib"}), 2, {"for meshes"}));
    write("a.vtu", cube(2));
    EXPECT_TRUE(fails_with(meshard({"convert", path("a.vtu"), path("b.vtu"), "--to", "pt"}), 2, {"for checkpoints"}));
}

TEST_F(ConvertCommand, ReportsAsTextAndJson)
{
    write("a.vtu", cube(2));

    const auto text = meshard({"convert", path("a.vtu"), path("b.vtu")});
    const auto json = meshard_json({"convert", path("a.vtu"), path("c.vtu")});

    EXPECT_NE(text.out.find("8 cells, 27 points"), std::string::npos) << text.out;
    EXPECT_EQ(json["num_cells"], 8);
    EXPECT_EQ(json["bytes"], std::filesystem::file_size(path("c.vtu")));
}

TEST_F(ConvertCommand, TakesPatchesOfACaseForPolygons)
{
    write_foam_case(path("case"), cube(3));

    ASSERT_EQ(meshard({"convert", path("case"), path("cells.vtu")}).exit_code, 0);
    ASSERT_EQ(meshard({"convert", path("case"), path("skin.vtp")}).exit_code, 0);
    ASSERT_EQ(meshard({"convert", path("case/case.foam"), path("left.vtp"), "--block", "boundary/left"}).exit_code, 0);
    ASSERT_EQ(
        meshard({"convert", path("case"), path("sides.vtp"), "--block", "boundary/left", "--block", "boundary/rest"})
            .exit_code,
        0);
    ASSERT_EQ(meshard({"convert", path("case"), path("start.vtu"), "--time", "0"}).exit_code, 0);

    EXPECT_EQ(read_mesh(path("cells.vtu")).num_cells(), 27);
    EXPECT_EQ(find_array(read_mesh(path("cells.vtu")).cell_data, "U")->unit, "m s^-1");
    EXPECT_EQ(read_mesh(path("skin.vtp")).num_cells(), 54);
    EXPECT_EQ(read_mesh(path("left.vtp")).num_cells(), 9);
    EXPECT_EQ(read_mesh(path("sides.vtp")).num_cells(), 54);
    EXPECT_EQ(find_array(read_mesh(path("start.vtu")).field_data, "TimeValue")->value(0), 0);
}

TEST_F(ConvertCommand, PartitionsAndMergesACase)
{
    write_foam_case(path("case"), cube(3), {.binary = true});

    ASSERT_EQ(meshard({"partition", path("case"), "-n", "3", "-o", path("shards")}).exit_code, 0);
    EXPECT_EQ(meshard({"check", path("shards")}).exit_code, 0);
    EXPECT_EQ(meshard({"merge", path("shards"), "--verify", path("case")}).exit_code, 0);
    ASSERT_EQ(meshard({"convert", path("shards"), path("shards.vtkhdf")}).exit_code, 0);
    EXPECT_EQ(read_mesh(path("shards.vtkhdf")).cells, read_mesh(path("case")).cells);
    ASSERT_EQ(meshard({"convert", path("shards"), path("back.vtu")}).exit_code, 0);
    EXPECT_EQ(difference(read_mesh(path("back.vtu")), read_mesh(path("case"))), "");
}

TEST_F(ConvertCommand, JoinsPointsThatCoincide)
{
    Mesh mesh = exploded(cube(3));
    std::vector<double> steps(mesh.num_points());
    for (std::size_t i = 0; i < steps.size(); ++i) steps[i] = static_cast<double>(i);
    mesh.point_data.push_back(DataArray::from("step", steps));
    const auto apart = write("apart.vtu", mesh);

    const auto result = meshard({"convert", apart, path("joined.vtu"), "--join-points", "0"});

    EXPECT_TRUE(fails_with(result, 0, {"points that were joined had different values of 'step'; those of the first"}));
    EXPECT_EQ(difference(read_mesh(path("joined.vtu")), join_points(mesh, 0).mesh), "");
    mesh.point_data.clear();
    const auto bare = write("bare.vtu", mesh);
    EXPECT_TRUE(fails_with(meshard({"convert", bare, path("a.vtu"), "--join-points", "0.5"}), 0,
                           {"cells (the first is number 0) shrank"}));
    EXPECT_TRUE(fails_with(meshard({"convert", path("joined.vtu"), path("a.vtu"), "--join-points", "0.1"}), 0,
                           {"no two points are at most 0.1 apart"}));
    for (const std::string length : {"-1", "inf"})
        EXPECT_TRUE(fails_with(meshard({"convert", apart, path("b.vtu"), "--join-points", length}), 2,
                               {"--join-points is " + length}));
    EXPECT_FALSE(std::filesystem::exists(path("b.vtu")));
    ASSERT_EQ(meshard({"partition", path("joined.vtu"), "-n", "2", "-o", path("shards")}).exit_code, 0);
    ASSERT_EQ(meshard({"convert", path("shards"), path("c.vtkhdf"), "--join-points", "0"}).exit_code, 0);
    EXPECT_EQ(read_mesh(path("c.vtkhdf")).num_points(), 64);
}

TEST_F(ConvertCommand, ScalesPoints)
{
    const Mesh mesh = cube(3);
    ASSERT_EQ(meshard({"convert", write("in_mm.vtu", mesh), path("in_m.vtu"), "--scale", "0.001"}).exit_code, 0);
    const auto scaled = read_mesh(path("in_m.vtu"));
    ASSERT_EQ(scaled.num_points(), mesh.num_points());
    for (std::int64_t i = 0; i < mesh.num_points(); ++i) {
        for (int c = 0; c < 3; ++c) EXPECT_DOUBLE_EQ(scaled.points.value(i, c), 0.001 * mesh.points.value(i, c));
    }
    EXPECT_TRUE(fails_with(meshard({"convert", path("in_m.vtu"), path("a.vtu"), "--scale", "0"}), 2,
                           {"--scale is 0, expected a number above 0"}));
    ASSERT_EQ(meshard({"partition", path("in_m.vtu"), "-n", "2", "-o", path("shards")}).exit_code, 0);
    ASSERT_EQ(meshard({"convert", path("shards"), path("back.vtkhdf"), "--scale", "1000"}).exit_code, 0);
    EXPECT_NEAR(read_mesh(path("back.vtkhdf")).points.value(63, 2), mesh.points.value(63, 2), 1e-12);
}

TEST_F(ConvertCommand, SaysWhatIsWrong)
{
    write("a.vtu", cube(2));

    EXPECT_TRUE(fails_with(meshard({"convert", path("a.vtu"), path("b.xyz")}), 3, {"'.xyz'; writable are .vtu .vtp"}));
    EXPECT_TRUE(
        fails_with(meshard({"convert", path("a.vtu"), path("b.vtp")}), 3, {"hexahedron, which .vtp cannot hold"}));
    EXPECT_TRUE(fails_with(meshard({"convert", path("a.vtu"), path("b.vtu"), "--compress", "zip"}), 2,
                           {"expected none, zlib or lz4"}));
    EXPECT_TRUE(fails_with(meshard({"convert", path("a.vtu"), path("b.vtu"), "--block", "x"}), 3,
                           {"holds one mesh and no blocks"}));
    EXPECT_TRUE(fails_with(meshard({"convert", path("absent.vtm"), path("b.vtu")}), 3, {"absent.vtm does not exist"}));
    EXPECT_EQ(entries(), std::vector<std::string>{"a.vtu"});
}

TEST_F(ConvertCommand, LeavesNothingOnAFullDisk)
{
    write("a.vtu", cube(12));

    EXPECT_EQ(meshard({"convert", path("a.vtu"), path("b.vtu")}, full_disk()).exit_code, 3);
    EXPECT_EQ(meshard({"convert", path("a.vtu"), path("b.vtkhdf")}, full_disk()).exit_code, 3);
    EXPECT_EQ(meshard({"convert", path("a.vtu"), path("b.pvtu")}, full_disk()).exit_code, 3);
    EXPECT_EQ(entries(), std::vector<std::string>{"a.vtu"});
}

}  // namespace
}  // namespace meshard
