// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/csr.h"
#include "partition/cut/partition.h"
#include "partition/mesh/mesh.h"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace meshard {

enum class GhostNeighbors : std::uint8_t {
    Face,    ///< as in `mesh_graph`: a common face (on a surface, an edge)
    Edge,    ///< a common edge: two common points that are neighbours on the outline of both
    Vertex,  ///< a common point
    Radius,  ///< means of the cells' points (`row_centroids`) at most `radius` apart
    Nearest  ///< one of these is among the k nearest of the other
};

/// The relation that makes rows neighbours for ghosts: a ghost layer is one step along it.
struct GhostRule {
    GhostNeighbors neighbors = GhostNeighbors::Face;
    double radius = 0;             ///< for Radius, in the mesh's unit
    std::int32_t num_nearest = 0;  ///< for Nearest

    bool operator==(const GhostRule&) const = default;
};

/// Parses `face`, `edge`, `vertex`, `radius:0.05` or `nearest:8`.
/// @throws InvalidInput for any other text.
GhostRule parse_ghost_rule(std::string_view text);
std::string to_string(const GhostRule& rule);

/// The edges of cells, numbered in the order of their first cells.
struct CellEdges {
    Csr of_cells;                                   ///< each row ascending
    std::vector<std::array<std::int32_t, 2>> ends;  ///< points of each edge, the lower first
};

CellEdges cell_edges(const Mesh& mesh);

/// The graph of the rule over the rows of `mesh`: symmetric (so that exchange plans are), without loops, rows
/// ascending. The centroid of a row of a cloud is the point itself; a cloud has no faces, edges or vertices: these
/// three rules give `mesh_graph` there. Memory: 4 bytes for each neighbour; by vertex, some 26 neighbours for a
/// hexahedron, 70 for a tetrahedron.
/// @throws InvalidInput as `mesh_graph`, or if a radius reaches more than 2^33 pairs of rows.
Csr ghost_graph(const Mesh& mesh, const GhostRule& rule);

/// The relation of `ghost_graph` in less memory: by edge and by vertex it stores the items (edges, points) that rows
/// share. A point of 100,000 cells takes 100,000 entries here and ten thousand million in `ghost_graph`.
struct GhostRelation {
    Csr graph;                           ///< neighbours of each row, for rules without shared items
    Csr items_of_row{}, rows_of_item{};  ///< items of each row and rows of each item, for the other rules
};

GhostRelation ghost_relation(const Mesh& mesh, const GhostRule& rule);

/// The part of the relation that `ghost_layers` needs for this partition and number of layers: by edge and by vertex,
/// only rows of cells near other parts are filled, in a fraction of the time and memory.
GhostRelation ghost_relation(const Mesh& mesh, const GhostRule& rule, const Partition& partition,
                             std::int32_t num_layers);

}  // namespace meshard
