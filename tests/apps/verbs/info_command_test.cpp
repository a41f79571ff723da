// SPDX-License-Identifier: Apache-2.0
#include "tests/apps/program_test.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/test_paths.h"

#include <array>
#include <cmath>
#include <limits>

namespace meshard {
namespace {

using Info = ProgramTest;

nlohmann::json array_named(const nlohmann::json& report, const std::string& name)
{
    for (const auto& array : report["arrays"]) {
        if (array["name"] == name) return array;
    }
    throw std::out_of_range("no array " + name);
}

TEST_F(Info, CountsCellsByType)
{
    auto report = meshard_json({"info", write("mixed.vtu", mixed_cells())});

    EXPECT_EQ(report["kind"], "unstructured");
    EXPECT_EQ(report["num_cells"], 6);
    const nlohmann::json expected{{"hexahedron", 1}, {"pyramid", 1},    {"tetra", 1},
                                  {"wedge", 1},      {"polyhedron", 1}, {"quad", 1}};
    EXPECT_EQ(report["cell_types"], expected);
    EXPECT_FALSE(report.contains("surface"));
}

TEST_F(Info, GivesRangesAndBounds)
{
    auto report = meshard_json({"info", write("strip.vtp", strip(4))});

    EXPECT_EQ(report["bounds"], nlohmann::json({{0.0, 4.0}, {0.0, 1.0}, {0.0, 0.0}}));
    auto pressure = array_named(report, "pressure");
    EXPECT_EQ(pressure["association"], "point");
    EXPECT_EQ(pressure["type"], "Float32");
    EXPECT_EQ(pressure["min"], -7.0);
    EXPECT_EQ(pressure["max"], 1.5 * 9 - 7);
    auto velocity = array_named(report, "velocity");
    EXPECT_EQ(velocity["components"], 3);
    EXPECT_EQ(velocity["component_ranges"][2], nlohmann::json({3.0, 3.0}));
    EXPECT_DOUBLE_EQ(velocity["magnitude_range"][1].get<double>(), std::hypot(0.0, 1.0, 3.0));
    EXPECT_EQ(array_named(report, "names")["values"], nlohmann::json({"body", "ground"}));
}

TEST_F(Info, GivesLengthsWhoseSquaresAreBeyondTheLargestNumber)
{
    Mesh mesh = strip(1);
    mesh.cell_data = {DataArray::from("v", std::vector<double>{3e200, 4e200, 0}, 3),
                      DataArray::from("w", std::vector<double>{3e-200, 4e-200, 0}, 3)};
    mesh.point_data = {DataArray::from("n", std::vector<double>{NAN, NAN, NAN, 0, NAN, 0, 0, 5, 0, 3, 4, 0}, 3)};
    const auto report = meshard_json({"info", write("extreme.vtp", mesh)});
    EXPECT_DOUBLE_EQ(array_named(report, "v")["magnitude_range"][0].get<double>(), 5e200);
    EXPECT_DOUBLE_EQ(array_named(report, "w")["magnitude_range"][1].get<double>(), 5e-200);
    EXPECT_DOUBLE_EQ(array_named(report, "n")["magnitude_range"][0].get<double>(), 5);  // not those of NaN
}

TEST_F(Info, CountsNaNAndLeavesItOutOfTheRange)
{
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    Mesh mesh = strip(4);
    mesh.cell_data = {DataArray::from("p", std::vector<float>{1, nan, 3, nan}),
                      DataArray::from("q", std::vector<float>(4, nan))};

    auto report = meshard_json({"info", write("strip.vtp", mesh)});

    EXPECT_EQ(array_named(report, "p")["nan_count"], 2);
    EXPECT_EQ(array_named(report, "p")["max"], 3.0);
    EXPECT_EQ(array_named(report, "q")["nan_count"], 4);
    EXPECT_TRUE(array_named(report, "q")["min"].is_null());
}

TEST_F(Info, TellsClosedFromOpenSurfaces)
{
    auto closed = meshard_json({"info", write("sphere.vtp", sphere(20))})["surface"];
    auto open = meshard_json({"info", write("hole.vtp", with_hole())})["surface"];

    EXPECT_EQ(closed["closed"], true);
    EXPECT_EQ(closed["boundary_edges"], 0);
    EXPECT_NEAR(closed["area"].get<double>(), 4 * M_PI, 0.1);
    EXPECT_NEAR(closed["enclosed_volume"].get<double>(), 4 * M_PI / 3, 0.1);
    EXPECT_EQ(open["closed"], false);
    EXPECT_EQ(open["boundary_edges"], 16);  // 12 outside, 4 around the hole
    EXPECT_DOUBLE_EQ(open["area"], 8.0);
}

/// Two unit cubes side by side, seen from outside, with the wall between them as often as said.
Mesh two_cubes(int num_walls)
{
    Mesh mesh;
    mesh.kind = MeshKind::Surface;
    std::vector<double> points;
    for (int z = 0; z < 2; ++z)
        for (int y = 0; y < 2; ++y)
            for (int x = 0; x < 3; ++x) points.insert(points.end(), {double(x), double(y), double(z)});
    mesh.points = DataArray::from("Points", points, 3);
    std::vector<std::array<std::int32_t, 4>> quads{{0, 3, 4, 1}, {1, 4, 5, 2}, {6, 7, 10, 9}, {7, 8, 11, 10},
                                                   {0, 1, 7, 6}, {1, 2, 8, 7}, {3, 9, 10, 4}, {4, 10, 11, 5},
                                                   {0, 6, 9, 3}, {2, 5, 11, 8}};
    for (int i = 0; i < num_walls; ++i)
        quads.push_back(i == 0 ? std::array<std::int32_t, 4>{1, 4, 10, 7} : std::array<std::int32_t, 4>{1, 7, 10, 4});
    for (const auto& quad : quads) {
        mesh.cells.push_row(quad);
        mesh.cell_types.push_back(9);
    }
    mesh.cell_data = {DataArray::from("p", std::vector<double>(quads.size(), 1.0))};
    return mesh;
}

TEST_F(Info, AndForcesTellOfWallsWithinABody)
{
    for (const int num_walls : {0, 2}) {
        const auto file = write("cubes.vtp", two_cubes(num_walls));
        EXPECT_NEAR(meshard_json({"info", file})["surface"]["enclosed_volume"].get<double>(), 2, 1e-12);
        const auto forces = meshard({"forces", file, "--shear", "none", "--json"});
        EXPECT_EQ(forces.err.find("do not cancel"), std::string::npos) << forces.err;
    }
    const auto file = write("cubes.vtp", two_cubes(1));
    const auto surface = meshard_json({"info", file})["surface"];
    EXPECT_EQ(surface["closed"], true);
    EXPECT_EQ(surface["non_manifold_edges"], 4);
    EXPECT_TRUE(surface["enclosed_volume"].is_null());
    EXPECT_NE(meshard({"info", file}).out.find("closed, but its areas do not cancel"), std::string::npos);
    const auto forces = meshard({"forces", file, "--shear", "none", "--json"});
    EXPECT_EQ(forces.exit_code, 0);
    EXPECT_NE(forces.err.find("closed, but its areas do not cancel, so that a constant pressure pushes it"),
              std::string::npos)
        << forces.err;
}

TEST_F(Info, CountsEdgesOfMoreThanTwoPolygons)
{
    Mesh mesh;
    mesh.kind = MeshKind::Surface;
    mesh.points = DataArray::from("Points", std::vector<float>{0, 0, 0, 1, 0, 0, 0, 1, 0, 0, -1, 0, 0, 0, 1}, 3);
    for (const std::int32_t tip : {2, 3, 4}) {
        const std::int32_t triangle[] = {0, 1, tip};
        mesh.cells.push_row(triangle);
        mesh.cell_types.push_back(5);
    }

    auto surface = meshard_json({"info", write("fan.vtp", mesh)})["surface"];

    EXPECT_EQ(surface["non_manifold_edges"], 1);
    EXPECT_EQ(surface["boundary_edges"], 6);
}

TEST_F(Info, DescribesClouds)
{
    auto report = meshard_json({"info", write("cloud.vtp", random_cloud(50, 1))});

    EXPECT_EQ(report["kind"], "point cloud");
    EXPECT_EQ(report["num_points"], 50);
    EXPECT_EQ(report["num_cells"], 0);
}

TEST_F(Info, EstimatesTheMemory)
{
    Mesh mesh = strip(4);  // 10 points, 4 quads
    mesh.point_data.clear();
    mesh.cell_data.clear();
    mesh.field_data.clear();

    auto report = meshard_json({"info", write("strip.vtp", mesh)});

    EXPECT_EQ(report["memory_bytes"], 10 * 12 + 5 * 8 + 16 * 4 + 4 + 8);  // the last: an empty Csr's one offset
}

TEST_F(Info, SaysTheSameInWords)
{
    const ProgramResult result = meshard({"info", write("sphere.vtp", sphere(8))});

    EXPECT_EQ(result.exit_code, 0) << result.err;
    for (const char* text :
         {"surface mesh", "224 triangle", "closed", "pressure", "Float64 x 3", "memory", "'body', 'ground'"}) {
        EXPECT_NE(result.out.find(text), std::string::npos) << text << " in\n" << result.out;
    }
}

TEST_F(Info, DescribesShards)
{
    const std::string shards = path("shards");
    ASSERT_EQ(meshard({"partition", write("strip.vtp", strip(10)), "-n", "2", "-o", shards}).exit_code, 0);

    auto report = meshard_json({"info", shards});
    const ProgramResult words = meshard({"info", shards});

    EXPECT_EQ(report["kind"], "shards");
    EXPECT_EQ(report["num_cells"], 10);
    EXPECT_EQ(report["num_parts"], 2);
    EXPECT_EQ(report["parts"][0]["cells"], 5);
    EXPECT_EQ(report["parts"][1]["ghost_cells"], 1);
    EXPECT_NE(words.out.find("2 parts, 1 ghost layer, method metis"), std::string::npos) << words.out;
}

TEST_F(Info, RefusesWhatItCannotRead)
{
    const std::string whole = content_of(write("strip.vtp", strip(10)));

    EXPECT_TRUE(fails_with(meshard({"info", path("none.vtp")}), 3, {"meshard info: ", "none.vtp"}));
    EXPECT_TRUE(fails_with(meshard({"info", write_text("notes.txt", "words")}), 3, {"notes.txt", ".vtu"}));
    EXPECT_TRUE(fails_with(meshard({"info", write_text("words.vtp", "no VTK file")}), 3, {"words.vtp"}));
    EXPECT_TRUE(fails_with(meshard({"info", write_text("words.vtk", "no VTK file")}), 3, {"words.vtk"}));
    EXPECT_TRUE(fails_with(meshard({"info", write_text("words.stl", "no STL file")}), 3, {"words.stl"}));
    EXPECT_TRUE(fails_with(meshard({"info", write_text("empty.vtu", "")}), 3, {"empty.vtu"}));
    EXPECT_TRUE(fails_with(meshard({"info", path("")}), 3, {"manifest"}));
    for (const double share : {0.05, 0.3, 0.6, 0.95}) {
        const auto length = static_cast<std::size_t>(share * static_cast<double>(whole.size()));
        EXPECT_TRUE(fails_with(meshard({"info", write_text("cut.vtp", whole.substr(0, length))}), 3, {"cut.vtp"}))
            << share;
    }
}

TEST_F(Info, ShowsTheParametersOfACheckpoint)
{
    const std::string file = source_path("tests/data/checkpoints/kinds.pt");

    auto report = meshard_json({"info", file});

    EXPECT_EQ(report["kind"], "checkpoint");
    EXPECT_TRUE(report["architecture"].is_null());
    EXPECT_EQ(report["parameters"].size(), 16U);
    EXPECT_EQ(report["parameters"][1], nlohmann::json({{"name", "transposed"}, {"type", "F32"}, {"shape", {4, 2, 3}}}));
    const auto text = meshard({"info", file});
    EXPECT_NE(text.out.find("checkpoint of a model without a name, 16 arrays, 102 values"), std::string::npos)
        << text.out;
}

TEST_F(Info, RefusesACheckpointThatNamesAFunction)
{
    const auto result = meshard({"info", source_path("tests/data/checkpoints/hostile/names_os_system.pt")});

    EXPECT_EQ(result.exit_code, 3);
    EXPECT_NE(result.err.find("names 'os.system'"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace meshard
