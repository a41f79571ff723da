// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/neighbors/neighbors.h"
#include "ops/rows/segment_reduce.h"
#include "partition/csr.h"
#include "partition/ghosts/index_map.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace meshard {

/// Of each query's neighbours the `max_neighbors` with the lowest ids, in their order.
Neighbors first_by_id(const Neighbors& neighbors, std::int64_t max_neighbors);

/// Rows of a graph's edges, (edges, ...), apart by whether their targets hear of ghosts; as long as steps keep them so, none of them copies all edges to
/// bring them together. Of a graph along which nothing travels all are `inner`, and `border` is undefined.
struct EdgeParts {
    at::Tensor inner;   ///< of targets whose sources are all owned
    at::Tensor border;  ///< of the other targets
};

/// A directed graph among rows (nodes) that graph networks pass messages along. An edge leads from a source to a target and lies with its target; the
/// edges of a target follow each other in the order that the graph was made with. Nodes are plain, or cut along dimension 0; edges then are cut, too.
class MessageGraph {
public:
    /// From a search in which the points themselves were the queries: each point receives from its neighbours. Collective where the points are cut.
    explicit MessageGraph(Neighbors neighbors);

    /// From a search around other rows, the targets: the queries of the search, plain or cut along dimension 0. Collective where they are cut.
    /// @throws InvalidInput on every rank if on one their number is another than that of the queries, and for whole targets among cut points
    MessageGraph(Neighbors neighbors, const at::Tensor& targets);

    /// From a graph over owned rows and their ghosts, e.g. the cells of a Subdomain: row i of `graph` lists the local rows that owned row i receives from;
    /// lists of ghosts are not looked at. Collective over the axis `domain`.
    MessageGraph(const Csr& graph, const std::shared_ptr<const IndexMap>& index_map, const std::shared_ptr<const DeviceMesh>& device_mesh);

    /// (nodes, ...) to (edges, ...): the source's row of each edge. Collective where nodes are cut: ghosts' rows travel once each. Differentiable.
    at::Tensor from_sources(const at::Tensor& nodes) const;

    /// (nodes, ...) to (edges, ...): the target's row. No communication. Differentiable.
    at::Tensor from_targets(const at::Tensor& nodes) const;

    /// (edges, ...) to (nodes, ...): what the edges of each target add up to, or their mean. No communication. Differentiable.
    at::Tensor to_targets(const at::Tensor& edges, SegmentReduction reduction) const;

    /// (edges, ...) as its parts, and back. No communication. Differentiable.
    EdgeParts parts_of(const at::Tensor& edges) const;
    at::Tensor whole(const EdgeParts& edges) const;

    /// Works out something for each edge from what lies there, its source's row and its target's row, as `update(edges, from_sources(sources),
    /// from_targets(targets))` does; edges of the inner part are worked on while ghosts travel, and the others after. Collective where nodes are cut.
    /// @param sources, targets  (nodes, ...), often the same  @param edges   may be undefined
    /// @param update   a function of each row on its own; called once for each part, in the same order on every rank
    using EdgeUpdate = std::function<at::Tensor(const at::Tensor& edges, const at::Tensor& sources, const at::Tensor& targets)>;
    EdgeParts updated_edges(const at::Tensor& sources, const at::Tensor& targets, const EdgeParts& edges, const EdgeUpdate& update) const;

    /// As of all edges: what those of each target add up to, in the same order, or their mean.
    at::Tensor to_targets(const EdgeParts& edges, SegmentReduction reduction) const;

    std::int64_t num_edges() const { return neighbors_.rows.size(0); }  ///< of this rank
    std::int64_t num_ghosts() const { return neighbors_.plan ? neighbors_.plan->num_ghosts() : 0; }
    const Neighbors& neighbors() const { return neighbors_; }
    const SpecPtr& edge_layout() const { return edge_spec_; }  ///< null for plain nodes

private:
    /// All edges of some targets.
    struct Part {
        at::Tensor nodes;    // the targets, ascending
        at::Tensor edges;    // which, ascending
        at::Tensor offsets;  // those of each target
        at::Tensor sources;  // rows of owned nodes; of the border rows of the sources that it needs and then ghosts
        at::Tensor targets;  // rows of owned nodes
        SpecPtr spec;
    };

    void lay_out_edges(const std::string& error = {});  // all ranks throw if one has an error

    Neighbors neighbors_;
    at::Tensor targets_;                  // (edges): the owned row of each
    SpecPtr target_spec_, edge_spec_;     // null for plain nodes
    Part inner_, border_;                 // where ghosts travel
    at::Tensor border_sources_;           // owned nodes that edges of the border start at
    at::Tensor edge_order_, node_order_;  // of each its place among those of the inner part and those of the border after them
};

/// A rank's nodes and all that messages reach them from within some steps: ghosts so deep that no step needs to exchange any. The same work is done by several
/// ranks, and nothing travels between the steps; results for owned nodes are those of the graph itself, to the last bit.
class DeepGraph {
public:
    /// Collective. @throws InvalidInput for a graph of plain nodes, and if ranks want different numbers of steps
    DeepGraph(const MessageGraph& graph, std::int64_t num_steps);

    const MessageGraph& graph() const { return *local_; }  ///< among owned nodes and ghosts; nothing travels along it

    at::Tensor with_ghost_nodes(const at::Tensor& nodes) const;  ///< (nodes, ...) of the shallow graph to those of this; collective, once
    at::Tensor with_ghost_edges(const at::Tensor& edges) const;
    at::Tensor owned_nodes(const at::Tensor& nodes) const;  ///< back again

    std::int64_t num_nodes() const { return num_owned_ + ghost_ids_.size(0); }  ///< of this rank, ghosts included

private:
    SpecPtr shallow_spec_, deep_spec_;
    std::int64_t num_owned_ = 0, max_degree_ = 0;
    at::Tensor ghost_ids_;        // of nodes
    at::Tensor inner_ghost_ids_;  // of those whose edges are here
    at::Tensor owned_slots_;      // (own edges): places in a table of max_degree_ a node
    at::Tensor ghost_slots_;      // (ghosts' edges): the same in a table of the inner ghosts
    std::unique_ptr<MessageGraph> local_;
};

}  // namespace meshard
