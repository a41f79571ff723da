// SPDX-License-Identifier: Apache-2.0
#include "partition/cut/curve_order.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_meshes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace meshard {
namespace {

TEST(HilbertIndex, VisitsEveryCellOfAGridOnceAndStepsToANeighbour)
{
    constexpr int n = 8;
    std::vector<std::pair<std::uint64_t, std::array<int, 3>>> cells;
    for (int i = 0; i < n; ++i) {
        for (int j = 0; j < n; ++j) {
            for (int k = 0; k < n; ++k) {
                cells.push_back({hilbert_index({(i + 0.5) / n, (j + 0.5) / n, (k + 0.5) / n}), {i, j, k}});
            }
        }
    }

    std::sort(cells.begin(), cells.end());

    for (std::size_t c = 1; c < cells.size(); ++c) {
        EXPECT_NE(cells[c].first, cells[c - 1].first);
        int steps = 0;
        for (int d = 0; d < 3; ++d) steps += std::abs(cells[c].second[d] - cells[c - 1].second[d]);
        EXPECT_EQ(steps, 1) << "from cell " << c - 1 << " to " << c;
    }
}

TEST(NumberPartsAlongCurve, OrdersTheSlabsOfAStrip)
{
    const Mesh mesh = strip(12);  // quads in a row along x
    Partition partition{4, {}};
    for (const int part : {2, 0, 3, 1}) partition.owners.insert(partition.owners.end(), 3, part);

    const auto numbered = number_parts_along_curve(mesh, partition);

    for (int cell = 0; cell < 12; ++cell) EXPECT_EQ(numbered.owners[cell], cell / 3);
}

TEST(NumberPartsAlongCurve, KeepsThePartsAndPutsEmptyOnesLast)
{
    const Mesh mesh = strip(4);
    const Partition partition{3, {2, 2, 1, 1}};

    const auto numbered = number_parts_along_curve(mesh, partition);

    EXPECT_EQ(numbered.owners, (std::vector<std::int32_t>{0, 0, 1, 1}));
    EXPECT_EQ(numbered.num_parts, 3);
}

TEST(NumberPartsAlongCurve, RefusesAPartitionOfAnotherMesh)
{
    EXPECT_TRUE(throws_with<InvalidInput>("has 3 rows, the mesh 4",
                                          [] { number_parts_along_curve(strip(4), {1, {0, 0, 0}}); }));
}

}  // namespace
}  // namespace meshard
