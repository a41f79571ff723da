// SPDX-License-Identifier: Apache-2.0
#include "partition/error.h"
#include "partition/mesh/mesh.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_meshes.h"

namespace meshard {
namespace {

TEST(Mesh, EverySampleIsValid)
{
    for (const auto& [name, mesh] : sample_meshes()) EXPECT_NO_THROW(mesh.validate()) << name;
}

TEST(Mesh, PrintsWhatItHolds)
{
    EXPECT_EQ(to_string(two_triangles()), "Mesh: 2 cells, 4 points, 3 cell arrays, 2 point arrays");
    EXPECT_TRUE(random_cloud(5, 1).is_point_cloud());
    EXPECT_EQ(random_cloud(5, 1).num_rows(), 5);
    EXPECT_EQ(mixed_cells().num_rows(), 6);
}

TEST(Mesh, NamesCellTypesAndTheirDimensions)
{
    EXPECT_EQ(cell_type_name(12), "hexahedron");
    EXPECT_EQ(cell_type_name(42), "polyhedron");
    EXPECT_EQ(cell_type_name(99), "cell type 99");
    EXPECT_EQ(cell_dimension(1), 0);
    EXPECT_EQ(cell_dimension(21), 1);
    EXPECT_EQ(cell_dimension(7), 2);
    EXPECT_EQ(cell_dimension(72), 3);
    EXPECT_EQ(cell_dimension(0), -1);
    EXPECT_EQ(cell_dimension(99), -1);
}

TEST(Mesh, NamesTheInvariantThatDoesNotHold)
{
    const auto refuses = [](Mesh mesh, auto change, const char* text) {
        change(mesh);
        return throws_with<InvalidInput>(text, [&] { mesh.validate(); });
    };
    const auto set_stream = [](Mesh& m, std::vector<std::int32_t> stream) {
        m.face_streams = {{0, static_cast<std::int64_t>(stream.size())}, stream};
    };

    EXPECT_TRUE(refuses(
        strip(2), [](Mesh& m) { m.points = DataArray("Points", ScalarType::Int32, 6, 3); }, "points are Int32"));
    EXPECT_TRUE(
        refuses(strip(2), [](Mesh& m) { m.points = DataArray("Points", ScalarType::Float32, 6, 2); }, "2 components"));
    EXPECT_TRUE(refuses(strip(2), [](Mesh& m) { m.cells.indices[5] = 6; }, "row 1 holds index 6, expected 0 to 5"));
    EXPECT_TRUE(refuses(strip(2), [](Mesh& m) { m.cells.offsets[1] = 9; }, "cells are not valid"));
    EXPECT_TRUE(refuses(strip(2), [](Mesh& m) { m.cell_types.pop_back(); }, "1 cell types for 2 cells"));
    EXPECT_TRUE(
        refuses(strip(2), [](Mesh& m) { m.cell_types[1] = 99; }, "cell 1 has type 99, which VTK does not know"));
    EXPECT_TRUE(refuses(strip(2), [](Mesh& m) { m.cell_types[1] = 5; }, "cell 1 (triangle) has 4 points, expected 3."));
    EXPECT_TRUE(refuses(
        strip(2), [](Mesh& m) { m.cell_types[0] = 72; },
        "cell 0 (lagrange_hexahedron) has 4 points, expected 8 or more"));
    EXPECT_TRUE(refuses(strip(2), [](Mesh& m) { m.cell_types[1] = 42; }, "there are 0 face streams, expected 2"));
    EXPECT_TRUE(refuses(
        strip(2),
        [](Mesh& m) {
            m.face_streams.push_row({});
            m.face_streams.push_row({});
        },
        "no cell is a polyhedron"));
    EXPECT_TRUE(refuses(
        mixed_cells(),
        [](Mesh& m) {
            m.cell_types[4] = 12;
            m.cell_types[5] = 42;
        },
        "face stream of cell 4 (hexahedron) is not empty"));
    EXPECT_TRUE(
        refuses(polyhedral_cube(1), [&](Mesh& m) { set_stream(m, {}); }, "is empty; a polyhedron needs its faces"));
    EXPECT_TRUE(
        refuses(polyhedral_cube(1), [&](Mesh& m) { set_stream(m, {2, 3, 0, 1, 2}); }, "ends before face 1 of 2"));
    EXPECT_TRUE(refuses(polyhedral_cube(1), [&](Mesh& m) { set_stream(m, {1, 4, 0, 1, 2}); }, "ends within face 0"));
    EXPECT_TRUE(refuses(
        polyhedral_cube(1), [&](Mesh& m) { set_stream(m, {1, 3, 0, 1, 8}); }, "uses point 8, which is not among them"));
    EXPECT_TRUE(refuses(
        polyhedral_cube(1), [&](Mesh& m) { set_stream(m, {1, 3, 0, 1, 2, 7}); }, "has 1 entries after its 1 faces"));
    EXPECT_TRUE(refuses(
        strip(2), [](Mesh& m) { m.point_data[1] = DataArray("velocity", ScalarType::Int8, 7); },
        "point array 'velocity' has 7 rows, expected 6"));
    EXPECT_TRUE(refuses(
        strip(2), [](Mesh& m) { m.cell_data[0] = DataArray("patch", ScalarType::Int8, 3); },
        "cell array 'patch' has 3 rows, expected 2"));
    EXPECT_TRUE(refuses(strip(2), [](Mesh& m) { m.cell_data[1].rename("patch"); }, "cell array 'patch' exists twice"));
    EXPECT_TRUE(refuses(
        strip(2), [](Mesh& m) { m.point_data[1].component_names = {"x"}; }, "1 component names for 3 components"));
}

TEST(Mesh, FindsItsArrays)
{
    const auto mesh = two_triangles();

    EXPECT_EQ(find_array(mesh.point_data, "velocity"), &mesh.point_data[1]);
    EXPECT_EQ(find_array(mesh.point_data, "patch"), nullptr);
    EXPECT_EQ(&require_array(mesh.cell_data, "flag", "test", "cell"), &mesh.cell_data[1]);
}

TEST(Mesh, SuggestsTheNearestArray)
{
    const auto mesh = two_triangles();

    EXPECT_TRUE(throws_with<InvalidInput>(
        "read_mesh: car.vtp has no point field 'pressur'. It has 'pressure' and 'velocity'. Did you mean 'pressure'?",
        [&] { require_array(mesh.point_data, "pressur", "read_mesh: car.vtp", "point"); }));
    EXPECT_TRUE(throws_with<InvalidInput>("no cell field 'q'. It has 'patch', 'flag' and 'label'.",
                                          [&] { require_array(mesh.cell_data, "q", "here", "cell"); }));
    EXPECT_TRUE(
        throws_with<InvalidInput>("It has no field fields at all.", [&] { require_array({}, "q", "here", "field"); }));
}

TEST(ExtractMesh, TakesCellsPointsAndArraysInTheirOrder)
{
    const auto mesh = mixed_cells();
    const std::vector<std::int32_t> cells{5, 4};
    const std::vector<std::int32_t> points{15, 14, 13, 12, 0, 1, 2, 3};

    const auto part = extract_mesh(mesh, cells, points);

    EXPECT_NO_THROW(part.validate());
    EXPECT_EQ(part.cells, (Csr{{0, 4, 12}, {3, 2, 1, 0, 3, 2, 1, 0, 4, 5, 6, 7}}));
    EXPECT_EQ(part.cell_types, (std::vector<std::uint8_t>{9, 42}));
    EXPECT_TRUE(part.face_streams.row(0).empty());
    EXPECT_EQ(std::vector<std::int32_t>(part.face_streams.row(1).begin(), part.face_streams.row(1).begin() + 6),
              (std::vector<std::int32_t>{6, 4, 3, 0, 1, 2}));
    EXPECT_EQ(part.points.value(0, 1), 1.0);
    EXPECT_EQ(part.point_data[0].value(0), mesh.point_data[0].value(15));
    EXPECT_EQ(part.cell_data[2].value(0), mesh.cell_data[2].value(5));
    EXPECT_EQ(part.field_data.size(), 2u);
}

TEST(ExtractMesh, LeavesTheFaceStreamsWithThePolyhedra)
{
    const auto part = extract_mesh(mixed_cells(), std::vector<std::int32_t>{2}, std::vector<std::int32_t>{5, 6, 8, 9});

    EXPECT_FALSE(part.has_polyhedra());
    EXPECT_NO_THROW(part.validate());
}

TEST(ExtractMesh, RefusesACellWithoutItsPoints)
{
    EXPECT_TRUE(throws_with<InvalidInput>("uses point 2, which is not", [] {
        extract_mesh(two_triangles(), std::vector<std::int32_t>{0}, std::vector<std::int32_t>{0, 1});
    }));
}

TEST(Difference, IsEmptyForEqualMeshes)
{
    for (const auto& [name, mesh] : sample_meshes()) EXPECT_EQ(difference(mesh, mesh), "") << name;
    EXPECT_EQ(difference(mixed_cells(), mixed_cells()), "");
}

TEST(Difference, NamesTheFirstPlace)
{
    const auto finds = [](auto change, const std::string& text) {
        auto changed = mixed_cells();
        change(changed);
        const auto found = difference(mixed_cells(), changed);
        return found.find(text) != std::string::npos ? testing::AssertionSuccess()
                                                     : testing::AssertionFailure() << "\"" << found << "\"";
    };

    EXPECT_TRUE(finds([](Mesh& m) { m.kind = MeshKind::Surface; }, "One mesh is a surface"));
    EXPECT_TRUE(finds([](Mesh& m) { m.points.mutable_values<double>()[3 * 7 + 1] += 1e-15; },
                      "points: the first row with other bits is 7"));
    EXPECT_TRUE(finds([](Mesh& m) { m.points = DataArray("Points", ScalarType::Float32, 16, 3); },
                      "points: Float64 against Float32"));
    EXPECT_TRUE(finds([](Mesh& m) { std::swap(m.cells.indices[8], m.cells.indices[9]); }, "that of cell 1"));
    EXPECT_TRUE(finds(
        [](Mesh& m) {
            m.cells.push_row({});
            m.cell_types.push_back(0);
        },
        "6 rows against 7"));
    EXPECT_TRUE(finds([](Mesh& m) { m.cell_types[5] = 8; }, "cell types: the first that differs is that of cell 5"));
    EXPECT_TRUE(finds([](Mesh& m) { std::swap(m.face_streams.indices[2], m.face_streams.indices[3]); },
                      "face streams: the first that differs is that of cell 4"));
    EXPECT_TRUE(finds([](Mesh& m) { m.point_data[0].mutable_values<float>()[2] = 0; },
                      "point array 'pressure': the first row with other bits is 2"));
    EXPECT_TRUE(finds([](Mesh& m) { m.cell_data.pop_back(); }, "Only the first mesh has cell array 'label'"));
    EXPECT_TRUE(finds([](Mesh& m) { m.cell_data.emplace_back("new", ScalarType::Int8, 6); },
                      "Only the second mesh has cell array 'new'"));
    EXPECT_TRUE(finds([](Mesh& m) { m.cell_data[0].rename("other"); }, "'patch' against 'other'"));
    EXPECT_TRUE(finds([](Mesh& m) { m.cell_data[0].attribute = ""; }, "attribute 'Scalars' against ''"));
    EXPECT_TRUE(finds([](Mesh& m) { m.point_data[1].component_names.clear(); }, "names of the components"));
    EXPECT_TRUE(finds([](Mesh& m) { m.field_data[1] = DataArray::from_strings("names", {"body", "sky"}); },
                      "first row with other bits is 1"));
    EXPECT_TRUE(finds([](Mesh& m) { m.field_data[0] = DataArray("time", ScalarType::Float64, 2); },
                      "1 x 1 values against 2 x 1"));
}

}  // namespace
}  // namespace meshard
