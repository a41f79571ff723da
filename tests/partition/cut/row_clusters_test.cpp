// SPDX-License-Identifier: Apache-2.0
#include "partition/cut/partition.h"
#include "partition/cut/row_clusters.h"
#include "partition/mesh/mesh_graph.h"
#include "tests/support/sample_meshes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

namespace meshard {
namespace {

TEST(RowClusters, AreSmallAndConnected)
{
    for (const auto& [name, mesh] : sample_meshes())
        for (const std::int32_t most : {1, 2, 3, 8}) {
            const auto graph = mesh_graph(mesh);
            const auto clusters = cluster_rows(graph, most);
            if (graph.num_rows() == 0) continue;

            const auto quality = measure_quality({clusters.num_clusters, clusters.cluster_of}, graph);

            for (const auto& part : quality.parts) {
                EXPECT_GE(part.num_owned, 1) << name;
                EXPECT_LE(part.num_owned, most) << name;
                EXPECT_EQ(part.num_components, 1) << name;
            }
        }
}

TEST(RowClusters, AreFewOnACube)
{
    const auto clusters = cluster_rows(cell_graph(cube(8)), 8);

    EXPECT_LT(clusters.num_clusters, 2 * 512 / 8);
}

TEST(JoinedRows, HaveTheEdgesBetweenTheirClusters)
{
    for (const auto& [name, mesh] : sample_meshes())
        for (const int rounds : {1, 2, 3}) {
            const auto graph = mesh_graph(mesh);
            const auto joined = join_rows(graph, rounds, 7);

            std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> expected, found;
            std::vector<std::int32_t> sizes(joined.clusters.num_clusters, 0);
            const auto& cluster_of = joined.clusters.cluster_of;
            for (std::int32_t i = 0; i < graph.num_rows(); ++i) {
                ++sizes[cluster_of[i]];
                for (const auto j : graph.row(i))
                    if (cluster_of[i] != cluster_of[j]) ++expected[{cluster_of[i], cluster_of[j]}];
            }
            for (std::int32_t i = 0; i < joined.graph.num_rows(); ++i)
                for (auto k = joined.graph.offsets[i]; k < joined.graph.offsets[i + 1]; ++k)
                    EXPECT_TRUE(found.emplace(std::pair(i, joined.graph.indices[k]), joined.edge_weights[k]).second)
                        << name;
            EXPECT_EQ(found, expected) << name;
            EXPECT_EQ(joined.sizes, sizes) << name;
            EXPECT_TRUE(std::ranges::all_of(sizes, [&](auto size) { return size >= 1 && size <= 1 << rounds; }))
                << name;
        }
}

}  // namespace
}  // namespace meshard
