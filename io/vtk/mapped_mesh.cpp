// SPDX-License-Identifier: Apache-2.0
#include "io/vtk/mapped_mesh.h"

#include "io/bytes/read_warnings.h"
#include "io/vtk/reading_conventions.h"
#include "io/vtk/vtk_xml_file.h"
#include "io/vtk/vtk_xml_reader.h"
#include "io/vtk/vtkhdf.h"
#include "partition/error.h"
#include "partition/lists.h"
#include "partition/mesh/cell_type.h"
#include "partition/mesh/mesh_faults.h"
#include "partition/nearest_name.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace meshard {

namespace {

constexpr const char* advice =
    "; write it with `meshard convert FILE whole.vtu`, which makes a file that can be mapped, and cut that";

std::int64_t integer(const DataArray& array, std::int64_t row)
{
    const std::byte* at = array.bytes().data();
    switch (array.type()) {
    case ScalarType::Int64:
    case ScalarType::UInt64:
        return reinterpret_cast<const std::int64_t*>(at)[row];
    case ScalarType::Int32:
        return reinterpret_cast<const std::int32_t*>(at)[row];
    case ScalarType::UInt8:
        return reinterpret_cast<const std::uint8_t*>(at)[row];
    default:
        return static_cast<std::int64_t>(array.value(row));
    }
}

}  // namespace

MappedMesh::MappedMesh(const std::filesystem::path& path) : where_("read_mesh: " + path.string())
{
    const auto extension = lower_extension(path);
    file_ = MappedFile::open(path, "read_mesh");
    if (extension == ".vtu" || extension == ".vtp")
        open_vtk_xml(path);
    else if (extension == ".vtkhdf" || extension == ".hdf")
        open_vtkhdf(path);
    else
        fail("only .vtu, .vtp and .vtkhdf files can be read in parts" + std::string(advice));
    require_whole();
    std::vector<std::string> warnings;
    apply_reading_conventions(rest_, path.string(), warnings);
    deliver_read_warnings(warnings, {});
}

void MappedMesh::fail(const std::string& what) const
{
    throw IoError("{}: {}.", where_, what);
}

void MappedMesh::require_mapped(const DataArray& array, const std::string& what) const
{
    if (array.type() == ScalarType::String)
        fail("array '" + array.name() + "' holds texts and cannot be mapped; remove it, or cut the file as a whole");
    if (array.num_values() == 0) return;
    const auto* at = array.bytes().data();
    const auto whole = file_->bytes();
    if (at < whole.data() || at >= whole.data() + whole.size()) fail(what + " cannot be mapped where it lies" + advice);
}

void MappedMesh::open_vtk_xml(const std::filesystem::path& path)
{
    const VtkXmlFile file(path, file_);
    std::vector<std::string> warnings;
    for (const std::string& text : file.warnings()) warnings.push_back(path.string() + ": " + text);
    deliver_read_warnings(warnings, {});
    rest_.kind = file.type() == "PolyData" ? MeshKind::Surface : MeshKind::Unstructured;
    if (rest_.kind != MeshKind::Surface && file.type() != "UnstructuredGrid")
        file.fail("expected a VTKFile of type UnstructuredGrid or PolyData, found '" + file.type() + "'");
    if (!file.compressor().empty()) fail("its arrays are compressed and cannot be mapped" + std::string(advice));
    if (file.root().child("AppendedData") == nullptr || file.appends_base64())
        fail("its arrays are not appended raw and cannot be mapped" + std::string(advice));
    if (file.encoding().is_swapped) fail("its numbers are big endian and cannot be mapped" + std::string(advice));
    const XmlElement& grid = file.require_child(file.root(), file.type());
    if (std::ranges::count(grid.children, "Piece", &XmlElement::name) != 1 || !file.times().empty())
        fail("it has not exactly one piece, of one time" + std::string(advice));
    const XmlElement& piece = file.require_child(grid, "Piece");

    const auto map_array = [&](const XmlElement& element, std::int64_t num_rows) {
        const auto* format = element.attribute("format");
        const auto* name = element.attribute("Name");
        if (format == nullptr || *format != "appended")
            fail("array '" + (name != nullptr ? *name : "") + "' is not appended raw and cannot be mapped" + advice);
        DataArray array = file.read_array(element, num_rows);
        require_mapped(array, "array '" + array.name() + "'");
        return array;
    };
    const std::int64_t num_points = file.read_count(piece, "NumberOfPoints");
    if (num_points > 0) {
        rest_.points = map_array(file.require_child(file.require_child(piece, "Points"), "DataArray"), num_points);
        rest_.points.rename("Points");
    }
    const auto add_group = [&](const char* tag, std::int64_t count, int polydata_group) {
        if (count == 0) return;
        const XmlElement& element = file.require_child(piece, tag);
        const auto require = [&](const char* name) -> const XmlElement& {
            const XmlElement* found = find_named(element, name);
            if (found == nullptr) fail("<" + std::string(tag) + "> has no array '" + name + "'");
            return *found;
        };
        groups_.push_back({num_cells_, count, polydata_group, false, map_array(require("offsets"), count),
                           map_array(require("connectivity"), -1)});
        num_cells_ += count;
        if (polydata_group >= 0) return;
        types_ = map_array(require("types"), count);
        if (find_named(element, "faces") != nullptr) {
            faces_ = map_array(require("faces"), -1);
            face_ends_ = map_array(require("faceoffsets"), count);
            has_polyhedra_ = true;
        } else if (find_named(element, "face_connectivity") != nullptr) {
            fail("its polyhedra are in the tables of VTK 9.4, which cannot be mapped" + std::string(advice));
        }
    };
    if (rest_.kind == MeshKind::Unstructured) {
        add_group("Cells", file.read_count(piece, "NumberOfCells"), -1);
    } else {
        constexpr std::array groups{"Verts", "Lines", "Polys", "Strips"};
        for (int group = 0; group < 4; ++group) {
            const std::string count = std::string("NumberOf") + groups[group];
            add_group(groups[group], piece.attribute(count) != nullptr ? file.read_count(piece, count) : 0, group);
        }
    }
    rest_.point_data = read_vtk_arrays(file, piece.child("PointData"), num_points);
    rest_.cell_data = read_vtk_arrays(file, piece.child("CellData"), num_cells_);
    rest_.field_data = read_vtk_arrays(file, grid.child("FieldData"), -1);
    for (const auto* arrays : {&rest_.point_data, &rest_.cell_data})
        for (const DataArray& array : *arrays) require_mapped(array, "array '" + array.name() + "'");
}

void MappedMesh::open_vtkhdf(const std::filesystem::path& path)
{
    VtkHdfArrays arrays = map_vtkhdf(path, file_, where_);
    rest_.kind = arrays.kind;
    rest_.points = std::move(arrays.points);
    rest_.point_data = std::move(arrays.point_data);
    rest_.cell_data = std::move(arrays.cell_data);
    rest_.field_data = std::move(arrays.field_data);
    types_ = std::move(arrays.types);
    for (auto& cells : arrays.cells) {
        const auto count = std::max<std::int64_t>(0, cells.offsets.num_rows() - 1);
        if (count > 0)
            groups_.push_back({num_cells_, count, cells.polydata_group, true, std::move(cells.offsets),
                               std::move(cells.connectivity)});
        num_cells_ += count;
    }
}

// Checks the file as a whole; single cells are checked when they are read.
void MappedMesh::require_whole() const
{
    const DataArray& points = rest_.points;
    if (num_points() > 0 && (points.num_components() != 3 ||
                             (points.type() != ScalarType::Float32 && points.type() != ScalarType::Float64)))
        fail(fmt::format("points are {} x {}, expected 3 x Float32 or Float64", points.num_components(),
                         to_string(points.type())));
    const auto require_integers = [&](const DataArray& array) {
        if (const auto fault = integers_fault(array); !fault.empty()) fail(fault);
    };
    for (const Group& group : groups_) {
        require_integers(group.ends);
        require_integers(group.connectivity);
        const auto end = integer(group.ends, group.ends.num_rows() - 1);
        if (end != group.connectivity.num_values())
            fail(fmt::format(
                "the offsets of the cells end at {}, but their connectivity has {} entries. The file is damaged", end,
                group.connectivity.num_values()));
    }
    for (const DataArray* array : {&types_, &faces_, &face_ends_})
        if (array->num_rows() > 0) require_integers(*array);
}

std::int64_t MappedMesh::num_cell_entries() const
{
    std::int64_t count = faces_.num_values();
    for (const Group& group : groups_) count += group.connectivity.num_values();
    return count;
}

Mesh MappedMesh::cells(std::span<const std::int32_t> cells) const
{
    Mesh mesh;
    mesh.kind = rest_.kind;
    mesh.points = rest_.points;
    mesh.cells.offsets.reserve(cells.size() + 1);
    mesh.cell_types.reserve(cells.size());
    for (const auto cell : cells) {
        const auto group =
            std::ranges::find_if(groups_, [&](const Group& g) { return cell < g.first_cell + g.num_cells; });
        push_cell(*group, cell - group->first_cell, cell, mesh);
    }
    if (!has_polyhedra_ || !contains(mesh.cell_types, kPolyhedron)) mesh.face_streams = Csr{};
    return mesh;
}

void MappedMesh::push_cell(const Group& group, std::int64_t row, std::int32_t cell, Mesh& mesh) const
{
    const auto at = [&](std::int64_t i) { return i < 0 ? 0 : integer(group.ends, i); };
    const auto begin = group.begins_with_zero ? at(row) : at(row - 1);
    const auto end = group.begins_with_zero ? at(row + 1) : at(row);
    if (begin < 0 || begin > end || end > group.connectivity.num_values())
        fail(fmt::format("cell {} has the points {} to {} of {}. The file is damaged", cell, begin, end,
                         group.connectivity.num_values()));
    count_touched(group.ends, row);
    count_touched(group.connectivity, begin);
    for (auto i = begin; i < end; ++i) {
        const auto point = integer(group.connectivity, i);
        if (point < 0 || point >= num_points())
            fail(fmt::format("cell {} uses point {}, expected 0 to {}. The file is damaged", cell, point,
                             num_points() - 1));
        mesh.cells.indices.push_back(static_cast<std::int32_t>(point));
    }
    mesh.cells.offsets.push_back(mesh.cells.num_entries());
    const auto type =
        group.polydata_group >= 0 ? polydata_cell_type(group.polydata_group, end - begin) : integer(types_, row);
    if (type < 0 || type > 255)
        fail(fmt::format("cell {} has type {}, expected 0 to 255. The file is damaged", cell, type));
    mesh.cell_types.push_back(static_cast<std::uint8_t>(type));
    if (const auto fault = cell_size_fault(cell, mesh.cell_types.back(), end - begin); !fault.empty())
        fail(fault + ". The file is damaged");
    if (has_polyhedra_)
        push_faces(row, cell, mesh);
    else if (type == kPolyhedron)
        fail(fmt::format("cell {} is a polyhedron, but the file has no faces that can be mapped{}", cell, advice));
}

void MappedMesh::push_faces(std::int64_t row, std::int32_t cell, Mesh& mesh) const
{
    Csr& streams = mesh.face_streams;
    if (mesh.cell_types.back() == kPolyhedron) {
        const auto end = integer(face_ends_, row);
        // Preceding cells that are no polyhedra have no end of their own.
        std::int64_t begin = 0;
        for (auto before = row - 1; before >= 0; --before)
            if (const auto previous = integer(face_ends_, before); previous >= 0) {
                begin = previous;
                break;
            }
        if (begin > end || end > faces_.num_values())
            fail(fmt::format("array 'faceoffsets' holds {} for cell {}, expected {} to {}. The file is damaged", end,
                             cell, begin, faces_.num_values()));
        count_touched(faces_, begin);
        const auto first = streams.num_entries();
        for (auto i = begin; i < end; ++i) {
            const auto entry = integer(faces_, i);
            streams.indices.push_back(std::in_range<std::int32_t>(entry) ? static_cast<std::int32_t>(entry) : -1);
        }
        const std::span stream(streams.indices.data() + first, static_cast<std::size_t>(end - begin));
        if (const auto fault = polyhedron_fault(cell, mesh.cells.row(mesh.cells.num_rows() - 1), stream);
            !fault.empty())
            fail(fault + ". The file is damaged");
    }
    streams.offsets.push_back(streams.num_entries());
}

// The system maps 64 KiB around each access. Accesses to scattered cells would thereby map the whole file, so pages are
// released after this number of them.
void MappedMesh::count_touched(const DataArray& array, std::int64_t row) const
{
    constexpr std::int64_t most = 512;
    const auto region = reinterpret_cast<std::uintptr_t>(array.bytes().data() +
                                                         row * static_cast<std::int64_t>(size_of(array.type()))) >>
                        16;
    if (contains(last_touched_, region)) return;
    last_touched_[static_cast<std::size_t>(num_touched_) % last_touched_.size()] = region;
    if (++num_touched_ % most == 0) file_->release_pages();
}

bool can_be_mapped(const std::filesystem::path& path)
{
    try {
        const MappedMesh mesh(path);
        return true;
    } catch (const IoError&) {
        return false;
    }
}

void MappedMesh::release_pages() const
{
    file_->release_pages();
}

}  // namespace meshard
