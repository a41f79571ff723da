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

/// Lowest and highest finite value; nothing if there is none.
using ValueRange = std::optional<std::array<double, 2>>;

struct ArraySummary {
    std::string association;  ///< `point`, `cell` or `field`
    std::string name;
    std::string type;  ///< VTK's name, e.g. `Float32`
    std::string attribute;
    std::int64_t num_rows = 0;
    std::int32_t num_components = 1;
    std::vector<ValueRange> ranges;  ///< of each component; none for strings
    ValueRange magnitude;            ///< of arrays with several components
    std::int64_t num_nan = 0;        ///< values, not rows
    std::int64_t num_infinite = 0;
    std::vector<std::string> strings;  ///< of a String array
};

/// The figures of a mesh that `meshard info` prints.
struct MeshSummary {
    std::string kind;   ///< `surface`, `unstructured` or `point cloud`
    int dimension = 0;  ///< highest of its cells; 0 for a cloud
    std::int64_t num_cells = 0;
    std::int64_t num_points = 0;
    std::vector<std::pair<std::string, std::int64_t>> cell_types;  ///< name and count, most frequent first
    ArraySummary points;
    std::vector<ArraySummary> arrays;   ///< point, cell, then field data, in the mesh's order
    std::optional<SurfaceEdges> edges;  ///< if the cells of highest dimension are polygons
    double area = 0;                    ///< of its polygons
    SurfaceFacing facing;               ///< of the polygons
    std::optional<double> volume;       ///< enclosed, negative if the normals point inwards; none of surfaces that enclose none or whose normals are mixed
    std::uint64_t memory_bytes = 0;     ///< of the mesh in this program
};

MeshSummary summarize(const Mesh& mesh);

ArraySummary summarize(const DataArray& array, std::string association);

}  // namespace meshard
