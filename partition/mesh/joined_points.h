// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"

#include <cstdint>
#include <string>
#include <vector>

namespace meshard {

/// Returns for each point the point with which it is joined: the nearest one (the first of several) among those that
/// are kept and at most `tolerance` away, in the mesh's unit; or the point itself. Points are processed in order; a
/// point that finds none is kept. 0 joins points at exactly the same position. Time and memory are proportional to the
/// number of points.
/// @throws InvalidInput if the tolerance is negative or not finite, or a coordinate is not finite
std::vector<std::int32_t> points_joined_with(const DataArray& points, double tolerance);

struct JoinedMesh {
    Mesh mesh;
    std::int64_t num_joined = 0;  ///< number of points that were removed
    /// Point arrays in which a removed point had another value than the one with which it was joined.
    std::vector<std::string> differing_fields;
};

/// The mesh with points joined by `points_joined_with`; cells refer to the points that are kept, which keep their
/// values and their order.
/// @throws InvalidInput as `points_joined_with`, or for a point cloud, whose rows are its points
JoinedMesh join_points(const Mesh& mesh, double tolerance);

/// Causes that separate the cells of a mesh.
struct UnjoinedCells {
    std::int64_t num_isolated = 0;    ///< number of polygons or solids without a neighbour
    std::int64_t num_coincident = 0;  ///< number of points of polygons and solids at the position of an earlier one
};

/// One sentence about what was found and what to do about it; empty if nothing was found. `shared` is what neighbours
/// share, e.g. `face`; `effect` follows as a clause.
std::string describe(const UnjoinedCells& found, const std::string& file, const std::string& shared,
                     const std::string& effect);

/// Counts the cells of one dimension that share no point with another of them; points are compared only if the cells
/// are in several pieces.
UnjoinedCells find_cells_without_common_points(const Mesh& mesh, int dimension);

/// Counts isolated cells in the graph of the mesh's cells; points are compared only if the graph is in several pieces.
UnjoinedCells find_unjoined_cells(const Mesh& mesh, const Csr& graph);

}  // namespace meshard
