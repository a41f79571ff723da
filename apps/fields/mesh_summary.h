// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"
#include "partition/mesh/surface_facing.h"
#include "partition/mesh/surface_geometry.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// The lowest and the highest finite value; nothing if there is none.
using ValueRange = std::optional<std::array<double, 2>>;

struct ArraySummary {
    std::string association;  ///< `point`, `cell` or `field`
    std::string name;
    std::string type;  ///< VTK's name, e.g. `Float32`
    std::string attribute;
    std::int64_t num_rows = 0;
    std::int32_t num_components = 1;
    std::vector<ValueRange> ranges;  ///< one for each component; none for strings
    ValueRange magnitude;            ///< range of the Euclidean norm, for several components
    std::int64_t num_nan = 0;        ///< number of values, not of rows
    std::int64_t num_infinite = 0;
    std::vector<std::string> strings;  ///< the texts of a String array
};

/// The figures of a mesh that `meshard info` prints.
struct MeshSummary {
    std::string kind;   ///< `surface`, `unstructured` or `point cloud`
    int dimension = 0;  ///< highest dimension of its cells; 0 for a cloud
    std::int64_t num_cells = 0;
    std::int64_t num_points = 0;
    std::vector<std::pair<std::string, std::int64_t>> cell_types;  ///< name and count, most frequent first
    ArraySummary points;
    std::vector<ArraySummary> arrays;   ///< point, cell, then field data, in the mesh's order
    std::optional<SurfaceEdges> edges;  ///< if the cells of highest dimension are polygons
    double area = 0;                    ///< total area of the polygons
    SurfaceFacing facing;               ///< polygons' area by the side to which their normals point
    /// The enclosed volume, negative if the normals point inwards; nothing if the surface is open or its normals are
    /// mixed.
    std::optional<double> volume;
    std::uint64_t memory_bytes = 0;  ///< size of the mesh in memory
};

MeshSummary summarize(const Mesh& mesh);

ArraySummary summarize(const DataArray& array, std::string association);

}  // namespace meshard
