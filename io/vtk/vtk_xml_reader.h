// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/vtk/vtk_xml_file.h"
#include "partition/mesh/mesh.h"

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// Reads the serial data set of an open file: `UnstructuredGrid` or `PolyData`, with one or several <Piece>s.
/// @throws IoError if it is of another type or damaged.
Mesh read_vtk_xml(const VtkXmlFile& file);

/// The arrays of a <PointData>, <CellData> or <FieldData> with their roles; empty for null.
/// @throws IoError if one has not `num_rows` rows (-1: any number).
std::vector<DataArray> read_vtk_arrays(const VtkXmlFile& file, const XmlElement* group, std::int64_t num_rows);

/// The same arrays as `read` makes them of their elements, which it is given in the file's order.
std::vector<DataArray> read_vtk_arrays(const VtkXmlFile& file, const XmlElement* group,
                                       const std::function<DataArray(const XmlElement&)>& read);

/// Concatenates the rows of several meshes; points are not merged. A surface's cells keep VTK's order: the vertices of
/// all meshes, then lines, polygons, strips. Field data are those of the first mesh.
/// @throws IoError, with a message that begins with `where`, if two non-empty meshes differ in their arrays.
Mesh append_meshes(std::vector<Mesh> meshes, const std::string& where);

/// Rank of a cell's type in the order of polygonal data: 0 vertices, 1 lines, 2 polygons, 3 strips; -1 for other types.
int polydata_group(std::uint8_t cell_type);

/// The type of a cell of `group` with that number of points in polygonal data.
std::uint8_t polydata_cell_type(int group, std::int64_t num_points);

/// Appends `array` to `arrays`. @throws IoError, with a message that begins with `where`, if there is one of that name.
void add_array(std::vector<DataArray>& arrays, DataArray array, const std::string& where);

/// VTK's names of the roles that arrays can have, e.g. `Scalars`, in the order in which its files list them.
std::span<const std::string_view> attribute_roles();
bool has_role(const DataArray& array, std::string_view role);
void add_role(DataArray& array, std::string_view role);

/// Gives an array the names of components, the unit and the roles of another one.
void describe_as(DataArray& array, const DataArray& like);

/// Adds a time as the field array `TimeValue` unless there is one of that name.
void add_time(std::vector<DataArray>& field_data, double time);

/// Returns the rows of `Mesh::face_streams` for cells of these types, from the points of each face and the faces of
/// each cell.
Csr face_streams_of(const Csr& faces, const Csr& faces_of_cells, const std::vector<std::uint8_t>& types);

/// Finds the array of that name among the children of a <Cells> or <Piece>, on request of the file's time step; null
/// if there is none.
const XmlElement* find_named(const XmlElement& parent, std::string_view name, const VtkXmlFile* of_step = nullptr);

/// Describes an array of cells that holds no integers; empty if it holds some.
std::string integers_fault(const DataArray& array);

}  // namespace meshard
