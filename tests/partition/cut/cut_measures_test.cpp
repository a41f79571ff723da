// SPDX-License-Identifier: Apache-2.0
#include "partition/cut/cut_measures.h"
#include "partition/mesh/mesh_graph.h"
#include "tests/support/sample_meshes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace meshard {
namespace {

TEST(MeasureCut, FindsWhatTheReportFinds)
{
    std::mt19937 random(5);
    for (const auto& graph : {cell_graph(tet_cube(5)), cell_graph(sphere(12)), mesh_graph(random_cloud(300, 2))}) {
        Partition partition{6, std::vector<std::int32_t>(graph.num_rows())};
        for (std::size_t i = 0; i < partition.owners.size(); ++i)
            partition.owners[i] = static_cast<std::int32_t>(i / 40 % 3 + random() % 3);

        const auto found = measure_cut(partition, graph);

        const auto quality = measure_quality(partition, graph);
        std::int64_t largest = 0;
        for (const auto& part : quality.parts) largest = std::max(largest, part.num_ghosts);
        EXPECT_EQ(found.cut, quality.edge_cut);
        EXPECT_EQ(found.largest_ghosts, largest);
    }
}

TEST(MeasureCut, RanksCutsByBothMeasures)
{
    const CutMeasures start{1000, 100};
    EXPECT_TRUE((CutMeasures{1000, 100}.is_no_worse_than(start)));
    EXPECT_FALSE((CutMeasures{900, 101}.is_no_worse_than(start)));
    EXPECT_FALSE((CutMeasures{1001, 90}.is_no_worse_than(start)));
    EXPECT_LT((CutMeasures{960, 108}.score()), start.score());  // 4 % of the cut are more than 8 % of the ghosts
    EXPECT_GT((CutMeasures{960, 120}.score()), start.score());
}

TEST(PartsInPieces, NamesThem)
{
    EXPECT_EQ(parts_in_pieces({3, {0, 1, 0, 2, 2, 1}}, cell_graph(strip(6))), (std::vector<std::int32_t>{0, 1}));
}

}  // namespace
}  // namespace meshard
