// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/neighbors/neighbors.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace meshard {

/// Points drawn from a cloud as nodes, and edges among them at several scales. Choice and edges depend on positions, global ids and seed, never on the
/// partition; edges of a node are in the order of the sources' ids.
struct MultiScaleGraph {
    at::Tensor rows;      ///< (own nodes), int64: which of this rank's rows of the cloud are nodes, in ascending order of ids
    SpecPtr layout;       ///< of the nodes: a node's id is its place among all nodes in the order of the cloud's ids; null for a plain cloud
    Neighbors neighbors;  ///< of each node those from which it hears, without distances; for `MessageGraph`
};

/// The graph of X-MeshGraphNet (Nabian et al. 2024, arXiv 2411.17164): levels with more and more points, each of which holds the points of those before it. In
/// every level each point is joined with its `num_neighbors` nearest of the level. An edge leads both ways, one that several levels have counts once, and
/// every node hears itself, too. The nodes are the points of the last level.
///
/// Every rank holds the ids of all nodes while the graph is made.
/// @param points        (N, D), D 1 to 3, of a floating type: plain, Replicate, or cut along the rows on the axis `domain`. Collective if they are cut
/// @param level_sizes   numbers of points, ascending; one of N and more takes all
/// @throws InvalidInput on every rank as `random_sample` and `knn`, and without levels or for sizes that are not positive and ascending
MultiScaleGraph multi_scale_graph(const at::Tensor& points, const std::vector<std::int64_t>& level_sizes, std::int64_t num_neighbors, std::uint64_t seed = 0);

}  // namespace meshard
