// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// Message about a cell whose number of points does not fit its type, e.g. `cell 7 (pyramid) has 8 points, expected 5`;
/// empty if it fits.
std::string cell_size_fault(std::int64_t cell, std::uint8_t type, std::int64_t num_points);

/// Message about a polyhedron whose face stream ends within a face or after its last, or uses a point that is not among
/// `points`, those of the cell; empty if there is no such fault.
std::string polyhedron_fault(std::int64_t cell, std::span<const std::int32_t> points,
                             std::span<const std::int32_t> stream);

/// Finds polyhedra with such faults among all cells of a mesh, faster than calls of `polyhedron_fault`.
class PolyhedronCheck {
public:
    bool passes(std::int32_t cell, std::span<const std::int32_t> points, std::span<const std::int32_t> stream);

private:
    /// Cell and point, indexed by the last bits of the point: the points of the current cell, except those that share
    /// their bits with a later one.
    std::array<std::uint64_t, 2048> seen_{};
};

/// Suspicious points and cells of a mesh, which can be used nevertheless.
struct MeshFaults {
    std::int64_t unused_points = 0;     ///< points that no cell uses, in a mesh with cells
    std::int64_t duplicate_cells = 0;   ///< cells of the same type with the same points as an earlier one
    std::int64_t degenerate_cells = 0;  ///< cells that use a point twice; except closed polylines and strips
    std::int64_t inverted_cells = 0;    ///< solids of negative volume in VTK's order of their points; except wedges
    std::int64_t outward_wedges = 0;    ///< wedges whose first triangle points outward: both orders are common
    std::int64_t first_duplicate = -1, first_degenerate = -1, first_inverted = -1,
                 first_outward = -1;  ///< the first such cell, -1 if there is none
};

/// One pass over the cells, about 0.1 s for a million. Cells are compared by a 64-bit hash of their points.
MeshFaults find_faults(const Mesh& mesh);

/// Faults of single cells only (degenerate, inverted), for parts of a mesh: no search for unused points and duplicate
/// cells.
/// @param numbers   by which the cells are called, of which the smallest is the first; if empty, their places
MeshFaults find_cell_faults(const Mesh& mesh, std::span<const std::int32_t> numbers = {});

/// A hash of each cell's type and points in any order, by which cells are compared; 0 for a cell without points.
std::vector<std::uint64_t> cell_hashes(const Mesh& mesh);

/// One sentence for each kind of fault there is, e.g. `3 points are used by no cell; ...`.
std::vector<std::string> describe(const MeshFaults& faults);

}  // namespace meshard
