// SPDX-License-Identifier: Apache-2.0
#include "partition/row_clusters.h"

#include "partition/mesh_graph.h"
#include "partition/partition.h"
#include "tests/support/sample_meshes.h"

#include <gtest/gtest.h>

#include <algorithm>

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

} // namespace
} // namespace meshard
