// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/csr.h"
#include "partition/mesh/mesh.h"
#include "partition/cut/partition.h"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace meshard {

enum class GhostNeighbors : std::uint8_t {
    Face,   ///< as in `mesh_graph`: a common face (on a surface, an edge)
    Edge,   ///< two common points that are neighbours on the outline of both
    Vertex, ///< a common point
    Radius, ///< middles within a distance
    Nearest ///< one's middle among the k nearest of the other's
};

/// Who must see whom: what a ghost layer is a step of.
struct GhostRule {
    GhostNeighbors neighbors = GhostNeighbors::Face;
    double radius = 0;           ///< of Radius, in the mesh's unit
    std::int32_t num_nearest = 0; ///< of Nearest

    bool operator==(const GhostRule&) const = default;
};

/// `face`, `edge`, `vertex`, `radius:0.05` or `nearest:8`.
/// @throws InvalidInput for anything else.
GhostRule parse_ghost_rule(std::string_view text);
std::string to_string(const GhostRule& rule);

/// The edges of cells, numbered as they come.
struct CellEdges {
    Csr of_cells;                                  ///< each row ascending
    std::vector<std::array<std::int32_t, 2>> ends; ///< points of each edge, the lower first
};

CellEdges cell_edges(const Mesh& mesh);

/// Graph of the rule over the rows of `mesh`: symmetric (so that exchange plans are), no loops, rows ascending. Rows of a
/// cloud are their own middles, and know no faces, edges or vertices: there these three mean `mesh_graph`.
/// Memory: 4 bytes a neighbour; by vertex, some 26 neighbours a hexahedron, 70 a tetrahedron.
/// @throws InvalidInput as `mesh_graph`, or if a radius reaches more than 2^33 pairs of rows.
Csr ghost_graph(const Mesh& mesh, const GhostRule& rule);

/// As much of that graph as `ghost_layers` of this partition and so many layers looks at: by edge and by vertex, only cells near other parts have
/// neighbours, in a fraction of the time and memory.
Csr ghost_graph(const Mesh& mesh, const GhostRule& rule, const Partition& partition, std::int32_t num_layers);

} // namespace meshard
