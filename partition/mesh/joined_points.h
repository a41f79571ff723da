// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"

#include <cstdint>
#include <string>
#include <vector>

namespace meshard {

/// For each point the point that it is joined with: the nearest one (of equally near ones the first) of those that are kept and at most `tolerance` away, in
/// the mesh's unit, or itself. Points are taken in their order; a point that finds none is kept. 0 joins points at exactly the same place.
/// Time and memory are proportional to the number of points.
/// @throws InvalidInput if the tolerance is negative or not finite, or a coordinate is not finite
std::vector<std::int32_t> points_joined_with(const DataArray& points, double tolerance);

struct JoinedMesh {
    Mesh mesh;
    std::int64_t num_joined = 0;                ///< points that are no more
    std::vector<std::string> differing_fields;  ///< point arrays of which a point that is no more had another value than the one that it was joined with
};

/// The mesh with points joined by `points_joined_with`; cells refer to the points that are kept, which keep their values and their order.
/// @throws InvalidInput as `points_joined_with`, or for a point cloud, whose rows are its points
JoinedMesh join_points(const Mesh& mesh, double tolerance);

/// What keeps the cells of a mesh apart.
struct UnjoinedCells {
    std::int64_t num_isolated = 0;    ///< polygons or solids without a neighbour
    std::int64_t num_coincident = 0;  ///< points of polygons and solids at the place of an earlier one
};

/// One sentence of what was found and what to do about it, or empty if there is nothing. `shared` is what neighbours would share, as in `face`; `effect`
/// follows as a clause.
std::string describe(const UnjoinedCells& found, const std::string& file, const std::string& shared, const std::string& effect);

/// Of the cells of one dimension those that share no point with another of them; points are compared only where the cells are in several pieces.
UnjoinedCells find_cells_without_common_points(const Mesh& mesh, int dimension);

/// Counts isolated cells in the graph of the mesh's cells; points are compared only where the graph is in several pieces.
UnjoinedCells find_unjoined_cells(const Mesh& mesh, const Csr& graph);

}  // namespace meshard
