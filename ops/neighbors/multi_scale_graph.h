// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/neighbors/neighbors.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace meshard {

/// Points drawn from a cloud as nodes, and edges among them at several scales. Points and edges depend on positions,
/// global ids and seed, never on the partition; the edges of a node are sorted by the sources' ids.
struct MultiScaleGraph {
    at::Tensor rows;  ///< (own nodes), int64: this rank's rows of the cloud that are nodes, sorted by id
    /// Layout of the nodes, whose ids number all nodes in the order of the cloud's ids; null for a plain cloud.
    SpecPtr layout;
    Neighbors neighbors;  ///< the sources of each node, without distances; for `MessageGraph`
};

/// The graph of X-MeshGraphNet (Nabian et al. 2024, arXiv 2411.17164): levels of increasing numbers of points, each of
/// which contains the points of the previous one. In every level each point is connected with its `num_neighbors`
/// nearest points of the level. Edges lead both ways, an edge of several levels counts once, and every node also has an
/// edge to itself. The nodes are the points of the last level.
///
/// Every rank holds the ids of all nodes while the graph is made.
/// @param points        (N, D), D 1 to 3, of a floating type: plain, Replicate, or cut along the rows on the axis
/// `domain`. Collective if they are cut
/// @param level_sizes   numbers of points, ascending; one of N and more takes all
/// @throws InvalidInput on every rank as `random_sample` and `knn`, and without levels or for sizes that are not
/// positive and ascending
MultiScaleGraph multi_scale_graph(const at::Tensor& points, const std::vector<std::int64_t>& level_sizes,
                                  std::int64_t num_neighbors, std::uint64_t seed = 0);

}  // namespace meshard
