// SPDX-License-Identifier: Apache-2.0
#include "partition/mesh/cell_type.h"
#include "partition/mesh/mesh_faults.h"
#include "tests/support/sample_meshes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <vector>

namespace meshard {
namespace {

TEST(MeshFaults, FindsNoneInSoundMeshes)
{
    for (const Mesh& mesh : {cube(3), tet_cube(2), polyhedral_cube(2), mixed_cells(), sphere(5), strip(4),
                             random_cloud(20, 1), empty_mesh()})
        EXPECT_TRUE(describe(find_faults(mesh)).empty()) << describe(find_faults(mesh)).front();
}

TEST(MeshFaults, CountsUnusedPoints)
{
    const MeshFaults faults = find_faults(with_unused_points());
    EXPECT_EQ(faults.unused_points, 5);
    EXPECT_EQ(describe(faults), std::vector<std::string>{"5 points are used by no cell; they are kept."});
}

TEST(MeshFaults, FindsDuplicateCellsInWhateverOrderTheirPointsStand)
{
    Mesh mesh = tet_cube(1);
    mesh.cell_data.clear();
    std::vector<std::int32_t> row(mesh.cells.row(2).begin(), mesh.cells.row(2).end());
    std::rotate(row.begin(), row.begin() + 1, row.begin() + 3);
    mesh.cells.push_row(row);
    mesh.cell_types.push_back(10);

    const MeshFaults faults = find_faults(mesh);

    EXPECT_EQ(faults.duplicate_cells, 1);
    EXPECT_EQ(faults.first_duplicate, 6);
    EXPECT_EQ(faults.inverted_cells, 0);
}

TEST(MeshFaults, TellsCellsApartWhosePointsHaveTheSameMean)
{
    // All lines around one middle, then each a second time.
    constexpr std::int32_t num_lines = 500;
    Mesh mesh;
    mesh.points = DataArray("Points", ScalarType::Float64, 2 * num_lines, 3);
    for (int time = 0; time < 2; ++time)
        for (std::int32_t i = 0; i < num_lines; ++i) {
            mesh.cells.push_row(std::array{i, 2 * num_lines - 1 - i});
            mesh.cell_types.push_back(3);
        }

    const MeshFaults faults = find_faults(mesh);

    EXPECT_EQ(faults.duplicate_cells, num_lines);
    EXPECT_EQ(faults.first_duplicate, num_lines);
}

TEST(MeshFaults, NameTheFaceOfAPolyhedronThatUsesAnotherPoint)
{
    for (const std::int32_t num_points :
         {4, 100'000}) {  // which would take minutes if each point were looked for among all
        std::vector<std::int32_t> points(static_cast<std::size_t>(num_points));
        std::iota(points.rbegin(), points.rend(), 10);
        std::vector<std::int32_t> stream{num_points};
        for (std::int32_t i = 0; i < num_points; ++i)
            for (const auto entry : {3, 10 + i, 10 + (i + 1) % num_points, 10 + (i + 2) % num_points})
                stream.push_back(entry);
        EXPECT_EQ(polyhedron_fault(5, points, stream), "");

        stream.back() = 9;

        const auto fault = polyhedron_fault(5, points, stream);
        EXPECT_NE(fault.find("cell 5 (polyhedron)"), std::string::npos) << fault;
        EXPECT_NE(fault.find("face " + std::to_string(num_points - 1) + " uses point 9"), std::string::npos) << fault;
    }
}

TEST(MeshFaults, FindFaceStreamsThatAreNotWhole)
{
    const std::vector<std::int32_t> points{0, 1, 2, 7};
    const std::vector<std::pair<std::vector<std::int32_t>, std::string>> cases{
        {{2, 3, 0, 1, 2, 3, 1, 2, 7}, ""},
        {{0}, ""},
        {{}, "is empty"},
        {{-1}, "says it has -1 faces"},
        {{-1, 3, 0, 1, 2}, "says it has -1 faces"},
        {{2, 3, 0, 1, 2}, "ends before face 1 of 2"},
        {{1}, "ends before face 0 of 1"},
        {{1, 4, 0, 1, 2}, "ends within face 0"},
        {{1, -3, 0, 1, 2}, "ends within face 0"},
        {{1, 2147483647, 0, 1, 2}, "ends within face 0"},
        {{1, 3, 0, 1, 2, 7}, "has 1 entries after its 1 faces"},
        {{1, 3, 0, 1, 3}, "face 0 uses point 3"},
        {{1, 3, 0, 1, 8}, "face 0 uses point 8"},
        {{1, 3, 0, 1, 2147483647}, "face 0 uses point 2147483647"},
        {{1, 3, 0, 1, -1}, "face 0 uses point -1"},
    };
    PolyhedronCheck check;
    check.passes(0, std::vector<std::int32_t>{3}, std::vector<std::int32_t>{0});  // another cell has point 3
    std::int32_t cell = 1;
    for (const auto& [stream, text] : cases) {
        const auto fault = polyhedron_fault(cell, points, stream);
        EXPECT_EQ(fault.empty(), text.empty()) << fault;
        EXPECT_NE(fault.find(text), std::string::npos) << fault;
        EXPECT_EQ(check.passes(cell++, points, stream), text.empty()) << text;
    }
}

TEST(MeshFaults, FindPointsThatAreNotOfAPolyhedronWhateverTheirNumbers)
{
    PolyhedronCheck check;
    for (const std::int32_t step :
         {1, 7, 2048, 65536}) {  // with steps of 2,048 and more, all points share their last bits
        std::vector<std::int32_t> points, stream{1, 60};
        for (std::int32_t i = 0; i < 60; ++i) points.push_back(5 + i * step);
        stream.insert(stream.end(), points.rbegin(), points.rend());
        EXPECT_TRUE(check.passes(3, points, stream)) << step;
        for (const std::int32_t strange : {5 + 60 * step, 4, 5 + 2048 * 65536, -5, 0}) {
            auto other = stream;
            other[30] = strange;
            EXPECT_FALSE(check.passes(3, points, other)) << step << ' ' << strange;
        }
        auto fewer = points;
        fewer.erase(fewer.begin() + 20);
        EXPECT_FALSE(check.passes(4, fewer, stream)) << "a point that the cell before had";
    }
}

TEST(MeshFaults, FindsInvertedAndDegenerateCells)
{
    for (Mesh mesh : {cube(2), tet_cube(1)}) {
        for (std::int64_t i = 0; i < 3; ++i) {  // mirrored: as if x pointed the other way
            auto* row = mesh.cells.indices.data() + mesh.cells.offsets[i];
            if (mesh.cell_types[i] == 10)
                std::swap(row[1], row[2]);
            else
                std::swap_ranges(row, row + 4, row + 4);
        }
        const MeshFaults faults = find_faults(mesh);
        EXPECT_EQ(faults.inverted_cells, 3);
        EXPECT_EQ(faults.first_inverted, 0);
        EXPECT_EQ(faults.degenerate_cells, 0);
    }
    Mesh mesh = cube(2);
    mesh.cells.indices[8] = mesh.cells.indices[9];
    EXPECT_EQ(find_faults(mesh).degenerate_cells, 1);
    EXPECT_EQ(find_faults(mesh).first_degenerate, 1);
}

}  // namespace
}  // namespace meshard
