// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/neighbors/neighbors.h"
#include "ops/rows/segment_reduce.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace meshard {

/// Keeps for each query the `max_neighbors` neighbours with the lowest ids, in ascending order.
Neighbors first_by_id(const Neighbors& neighbors, std::int64_t max_neighbors);

/// Rows of a graph's edges, (edges, ...), in two tensors: edges of targets that receive from ghosts, and the others, so
/// that steps need not copy all edges to concatenate them. In a graph without ghosts all edges are `inner`, and
/// `border` is undefined.
struct EdgeParts {
    at::Tensor inner;   ///< edges of targets whose sources are all owned
    at::Tensor border;  ///< edges of the other targets
};

/// A directed graph for message passing among rows (nodes). An edge leads from a source to a target and is held by the
/// rank that owns the target; the edges of a target are consecutive, in the order given at construction. Nodes are
/// plain, or cut along dimension 0; then edges are cut, too.
class MessageGraph {
public:
    /// Makes the graph of a search in which the points were also the queries: each point receives from its neighbours.
    /// Collective if the points are cut.
    explicit MessageGraph(Neighbors neighbors);

    /// Makes the graph of a search with other rows as queries, the targets, plain or cut along dimension 0. Collective
    /// if they are cut.
    /// @throws InvalidInput on every rank if on any rank the number of targets is not that of the queries, and for
    /// whole targets and cut points
    MessageGraph(Neighbors neighbors, const at::Tensor& targets);

    /// (nodes, ...) to (edges, ...): the row of each edge's source. Collective if nodes are cut: owners send each ghost
    /// row once. Differentiable.
    at::Tensor from_sources(const at::Tensor& nodes) const;

    /// (nodes, ...) to (edges, ...): the row of each edge's target. No communication. Differentiable.
    at::Tensor from_targets(const at::Tensor& nodes) const;

    /// (edges, ...) to (nodes, ...): the sum, mean or extreme of each target's edges. No communication. Differentiable.
    at::Tensor to_targets(const at::Tensor& edges, SegmentReduction reduction) const;

    /// Splits (edges, ...) into parts; `whole` is the inverse. No communication. Differentiable.
    EdgeParts parts_of(const at::Tensor& edges) const;
    at::Tensor whole(const EdgeParts& edges) const;

    /// Computes `update(edges, from_sources(sources), from_targets(targets))`: new rows of the edges from their rows
    /// and those of their sources and targets. Inner edges are computed while ghosts are received, border edges after.
    /// Collective if nodes are cut.
    /// @param sources, targets  (nodes, ...), often the same  @param edges   may be undefined
    /// @param update   must compute each row independently of the others; called once for each part, in the same order
    /// on every rank
    using EdgeUpdate =
        std::function<at::Tensor(const at::Tensor& edges, const at::Tensor& sources, const at::Tensor& targets)>;
    EdgeParts updated_edges(const at::Tensor& sources, const at::Tensor& targets, const EdgeParts& edges,
                            const EdgeUpdate& update) const;

    /// Equal to `to_targets(whole(edges), reduction)`, with sums in the same order.
    at::Tensor to_targets(const EdgeParts& edges, SegmentReduction reduction) const;

    std::int64_t num_edges() const { return neighbors_.rows.size(0); }  ///< number of this rank's edges
    std::int64_t num_ghosts() const { return neighbors_.plan ? neighbors_.plan->num_ghosts() : 0; }
    const Neighbors& neighbors() const { return neighbors_; }
    const SpecPtr& edge_layout() const { return edge_spec_; }  ///< null for plain nodes

private:
    /// Some targets with all their edges.
    struct Part {
        at::Tensor nodes;    // rows of the targets, ascending
        at::Tensor edges;    // indices of their edges, ascending
        at::Tensor offsets;  // start of each target's edges in `edges`
        // For each edge the row of an owned node; in the border part a row of border_sources_ followed by ghosts.
        at::Tensor sources;
        at::Tensor targets;  // for each edge the row of an owned node
        SpecPtr spec;
    };

    void lay_out_edges(const std::string& error);  // all ranks throw if one has an error

    Neighbors neighbors_;
    at::Tensor targets_;               // (edges): the owned row of each edge's target
    SpecPtr target_spec_, edge_spec_;  // null for plain nodes
    Part inner_, border_;              // undefined without ghosts
    at::Tensor border_sources_;        // owned nodes that are sources of border edges
    // Position of each edge, or node, in the concatenation of inner and border part.
    at::Tensor edge_order_, node_order_;
};

/// A rank's nodes with all nodes whose messages reach them within `num_steps` steps: enough layers of ghosts that no
/// step exchanges any. Several ranks then compute the same rows, but send nothing between the steps; results for owned
/// nodes equal those of the graph itself bit for bit.
class DeepGraph {
public:
    /// Collective. @throws InvalidInput for a graph of plain nodes, and if ranks pass different numbers of steps
    DeepGraph(const MessageGraph& graph, std::int64_t num_steps);

    /// Graph among owned nodes and ghosts; it needs no communication.
    const MessageGraph& graph() const { return *local_; }

    /// (owned nodes, ...) with the rows of the ghosts appended; collective.
    at::Tensor with_ghost_nodes(const at::Tensor& nodes) const;
    at::Tensor with_ghost_edges(const at::Tensor& edges) const;
    at::Tensor owned_nodes(const at::Tensor& nodes) const;  ///< removes the ghosts' rows

    /// Number of this rank's nodes, ghosts included.
    std::int64_t num_nodes() const { return num_owned_ + ghost_ids_.size(0); }

private:
    SpecPtr shallow_spec_, deep_spec_;
    std::int64_t num_owned_ = 0, max_degree_ = 0;
    at::Tensor ghost_ids_;        // ids of ghost nodes
    at::Tensor inner_ghost_ids_;  // ids of ghosts whose edges this rank has
    at::Tensor owned_slots_;      // (own edges): indices into a table with max_degree_ entries for each node
    at::Tensor ghost_slots_;      // (ghosts' edges): indices into such a table of the inner ghosts
    std::unique_ptr<MessageGraph> local_;
};

}  // namespace meshard
