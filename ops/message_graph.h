// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include <ATen/core/Tensor.h>

#include "ops/neighbors.h"
#include "ops/segment_reduce.h"
#include "partition/csr.h"
#include "partition/index_map.h"

namespace meshard {

/// Of each query's neighbours the `max_neighbors` with the lowest ids, in their order.
Neighbors first_by_id(const Neighbors& neighbors, std::int64_t max_neighbors);

/// A directed graph among rows (nodes) that graph networks pass messages along. An edge leads from a source to a target and lies with its target; the
/// edges of a target follow each other in the order that the graph was made with. Nodes are plain, or cut along dimension 0; edges then are cut, too.
class MessageGraph {
public:
    /// From a search in which the points themselves were the queries: each point receives from its neighbours. Collective where the points are cut.
    explicit MessageGraph(Neighbors neighbors);

    /// From a search around other rows, the targets: the queries of the search, plain or cut along dimension 0. Collective where they are cut.
    /// @throws InvalidInput if their number is another than that of the queries, and for whole targets among cut points
    MessageGraph(Neighbors neighbors, const at::Tensor& targets);

    /// From a graph over owned rows and their ghosts, e.g. the cells of a Subdomain: row i of `graph` lists the local rows that owned row i receives from; lists of
    /// ghosts are not looked at. Collective over the axis `domain`.
    MessageGraph(const Csr& graph, const std::shared_ptr<const IndexMap>& index_map, const std::shared_ptr<const DeviceMesh>& device_mesh);

    /// (nodes, ...) to (edges, ...): the source's row of each edge. Collective where nodes are cut: ghosts' rows travel once each. Differentiable.
    at::Tensor from_sources(const at::Tensor& nodes) const;

    /// (nodes, ...) to (edges, ...): the target's row. No communication. Differentiable.
    at::Tensor from_targets(const at::Tensor& nodes) const;

    /// (edges, ...) to (nodes, ...): what the edges of each target add up to, or their mean. No communication. Differentiable.
    at::Tensor to_targets(const at::Tensor& edges, SegmentReduction reduction) const;

    /// Works out something for each edge from what lies there, (edges, ...) or undefined, its source's row and its target's row, as
    /// `update(edges, from_sources(nodes), from_targets(nodes))` does; edges whose sources are owned are worked on while ghosts travel, and the others after.
    /// @param update   a function of each row on its own; called once for some of the edges and once for the others, in the same order on every rank
    using EdgeUpdate = std::function<at::Tensor(const at::Tensor& edges, const at::Tensor& sources, const at::Tensor& targets)>;
    at::Tensor updated_edges(const at::Tensor& nodes, const at::Tensor& edges, const EdgeUpdate& update) const;

    std::int64_t num_edges() const { return neighbors_.rows.size(0); }          ///< of this rank
    std::int64_t num_ghosts() const { return neighbors_.plan ? neighbors_.plan->num_ghosts() : 0; }
    const Neighbors& neighbors() const { return neighbors_; }
    const SpecPtr& edge_layout() const { return edge_spec_; }                   ///< null for plain nodes

private:
    /// Edges that start at owned nodes, or at ghosts.
    struct SomeEdges {
        at::Tensor edges;      // which, ascending
        at::Tensor sources;    // rows of owned nodes, or of ghosts
        at::Tensor targets;
        SpecPtr spec;
    };

    void lay_out_edges();

    Neighbors neighbors_;
    at::Tensor targets_;            // (edges): the owned row of each
    SpecPtr target_spec_, edge_spec_;   // null for plain nodes
    SomeEdges inner_, border_;      // where ghosts travel
    at::Tensor order_;              // of each edge its place among the inner ones and those of the border after them
};

/// A rank's nodes and all that messages reach them from within some steps: ghosts so deep that no step needs to exchange any. The same work is done by several
/// ranks, and nothing travels between the steps; results for owned nodes are those of the graph itself, to the last bit.
class DeepGraph {
public:
    /// Collective. @throws InvalidInput for a graph of plain nodes.
    DeepGraph(const MessageGraph& graph, std::int64_t num_steps);

    const MessageGraph& graph() const { return *local_; }                       ///< among owned nodes and ghosts; nothing travels along it

    at::Tensor with_ghost_nodes(const at::Tensor& nodes) const;                 ///< (nodes, ...) of the shallow graph to those of this; collective, once
    at::Tensor with_ghost_edges(const at::Tensor& edges) const;
    at::Tensor owned_nodes(const at::Tensor& nodes) const;                      ///< back again

    std::int64_t num_nodes() const { return num_owned_ + ghost_ids_.size(0); }  ///< of this rank, ghosts included

private:
    SpecPtr shallow_spec_, deep_spec_;
    std::int64_t num_owned_ = 0, max_degree_ = 0;
    at::Tensor ghost_ids_;          // of nodes
    at::Tensor inner_ghost_ids_;    // of those whose edges are here
    at::Tensor owned_slots_;        // (own edges): places in a table of max_degree_ a node
    at::Tensor ghost_slots_;        // (ghosts' edges): the same in a table of the inner ghosts
    std::unique_ptr<MessageGraph> local_;
};

}  // namespace meshard
