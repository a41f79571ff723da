// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/neighbors/message_graph.h"

#include <ATen/core/Tensor.h>

namespace meshard {

/// A message graph made from a list of edges, and the edges of the list that this rank holds, in the graph's order.
struct EdgeListGraph {
    MessageGraph graph;
    at::Tensor edges;  ///< (edges of this rank), int64: columns of the list
};

/// Makes the graph from a list of edges that every rank holds whole. Edges of one target keep their order. Collective
/// over the nodes' ranks if the nodes are cut.
/// @param nodes       (N, ...), plain or cut along dimension 0: only their layout is used
/// @param edge_index  (2, E), int64, plain: the source and the target of each edge, row numbers in the whole
/// @throws InvalidInput on every rank for another shape or type, rows outside [0, N), and nodes that are cut in another
/// way
EdgeListGraph graph_of_edges(const at::Tensor& nodes, const at::Tensor& edge_index);

}  // namespace meshard
