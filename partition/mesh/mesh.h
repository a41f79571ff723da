// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/csr.h"
#include "partition/mesh/data_array.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshard {

/// VTK's type of the data set; decides the file type that stores the mesh without loss.
enum class MeshKind : std::uint8_t {
    Surface,      ///< vtkPolyData (.vtp, .stl, .ply): cells in VTK's order, that is vertices, lines, polygons, strips
    Unstructured  ///< vtkUnstructuredGrid (.vtu)
};

/// Geometry and named arrays on it. A point cloud is a mesh without cells.
///
/// Invariants (checked by `validate`): points are (num_points, 3) Float32 or Float64; point indices are in [0,
/// num_points); there is one type for each cell, and a face stream of its own points for each polyhedron and for no
/// other cell; point data have num_points rows, cell data num_cells rows; names are unique within each group.
struct Mesh {
    MeshKind kind = MeshKind::Unstructured;

    DataArray points{"Points", ScalarType::Float32, 0, 3};  ///< (num_points, 3), in the file's type and unit

    /// Point indices of each cell in VTK's order (of a polyhedron its points, each once).
    Csr cells;
    std::vector<std::uint8_t> cell_types;  ///< VTK's cell type numbers, e.g. 5 triangle, 12 hexahedron, 42 polyhedron

    /// Faces of the polyhedra in VTK's stream form, one row for each cell: number of faces, then for each face its
    /// number of points and those points; empty rows for other cells. No rows at all if the mesh has no polyhedron.
    Csr face_streams;

    std::vector<DataArray> point_data;
    std::vector<DataArray> cell_data;
    std::vector<DataArray> field_data;  ///< for the whole mesh: patch names, time value, ...; any length

    std::int64_t num_points() const { return points.num_rows(); }
    std::int64_t num_cells() const { return cells.num_rows(); }
    bool is_point_cloud() const { return num_cells() == 0; }
    bool has_polyhedra() const { return face_streams.num_rows() > 0; }

    /// Number of rows that a partition cuts: cells, or the points of a cloud.
    std::int64_t num_rows() const { return is_point_cloud() ? num_points() : num_cells(); }

    /// @throws InvalidInput naming the first thing that does not hold.
    void validate() const;
};

/// The array of that name, or null.
const DataArray* find_array(std::span<const DataArray> arrays, std::string_view name);

/// The array of that name. @throws InvalidInput that lists the names there are and the nearest one.
/// @param where   begins the message, e.g. "read_mesh: car.vtp"
/// @param group   "point", "cell" or "field"
const DataArray& require_array(std::span<const DataArray> arrays, std::string_view name, std::string_view where,
                               std::string_view group);

/// The arrays at the cells of a mesh or grid, or at its points.
template <class Holder>
auto& arrays_at(Holder& holder, bool of_cells)
{
    return of_cells ? holder.cell_data : holder.point_data;
}

/// The array of that name among them, as above.
template <class Holder>
    requires requires(const Holder& holder) { holder.cell_data; }
const DataArray& require_array(const Holder& holder, bool of_cells, std::string_view name, std::string_view where)
{
    return require_array(arrays_at(holder, of_cells), name, where, of_cells ? "cell" : "point");
}

/// VTK's name of a cell type in lower case, e.g. `hexahedron`; `cell type 99` for unknown ones.
std::string cell_type_name(std::uint8_t cell_type);

/// Topological dimension of a cell type: 0 vertex, 1 line, 2 polygon, 3 solid; -1 if unknown or empty.
int cell_dimension(std::uint8_t cell_type);

/// The mesh of the given cells (of a cloud: points) and points, in that order, with their rows of all arrays. Every
/// point of a given cell must be among `points`. Field data are kept whole.
Mesh extract_mesh(const Mesh& mesh, std::span<const std::int32_t> cells, std::span<const std::int32_t> points);

/// `extract_mesh` for callers that extract many parts and keep the inverse of `points`: `local_points[p]` is the index
/// of point p in `points`, or -1.
Mesh extract_mesh(const Mesh& mesh, std::span<const std::int32_t> cells, std::span<const std::int32_t> points,
                  std::span<const std::int32_t> local_points);

/// Calls `f(cell, point)` with a reference to each point index in the face streams, skipping the counts between them.
template <class F>
void for_each_face_point(Csr& face_streams, F&& f)
{
    for (std::int64_t i = 0; i < face_streams.num_rows(); ++i) {
        auto at = face_streams.offsets[i] + 1;  // after the number of faces
        while (at < face_streams.offsets[i + 1])
            for (auto left = face_streams.indices[at++]; left > 0; --left) f(i, face_streams.indices[at++]);
    }
}

/// Describes the first difference of two meshes in one sentence; empty if they are equal bit for bit (geometry, cells,
/// types, arrays with names and attributes, in order).
std::string difference(const Mesh& a, const Mesh& b);

/// One line, e.g. `Mesh: 353525 cells, 406431 points, 4 cell arrays, 0 point arrays`.
std::string to_string(const Mesh& mesh);

}  // namespace meshard
