// SPDX-License-Identifier: Apache-2.0
#include "io/vtk/vtk_xml_reader.h"

#include "io/vtk/hexahedron_order.h"
#include "partition/error.h"
#include "partition/lists.h"
#include "partition/mesh/cell_type.h"
#include "partition/mesh/mesh_faults.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace meshard {

namespace {

/// Reads the connectivity and offsets of `num_cells` cells; `what` is their name in messages.
Csr read_cells(const VtkXmlFile& file, const DataArray& connectivity, const DataArray& offsets, std::int64_t num_points,
               const std::string& what)
{
    const std::int64_t num_cells = offsets.num_rows();
    Csr cells;
    cells.offsets.resize(static_cast<std::size_t>(num_cells) + 1);
    with_scalar_type(offsets.type(), [&]<class T>() {
        const auto values = offsets.values<T>();
        for (std::int64_t i = 0; i < num_cells; ++i) {
            cells.offsets[i + 1] = static_cast<std::int64_t>(values[i]);
            if (cells.offsets[i + 1] < cells.offsets[i])
                file.fail(fmt::format("the offsets of the {} fall at cell {}. The file is damaged", what, i));
        }
    });
    if (cells.offsets.back() != connectivity.num_values())
        file.fail(
            fmt::format("the offsets of the {} end at {}, but their connectivity has {} entries. The file is damaged",
                        what, cells.offsets.back(), connectivity.num_values()));
    cells.indices.resize(connectivity.num_values());
    with_scalar_type(connectivity.type(), [&]<class T>() {
        const auto values = connectivity.values<T>();
        bool in_range = true;
        for (std::size_t i = 0; i < values.size(); ++i) {
            const auto point = static_cast<std::int64_t>(values[i]);
            in_range &= point >= 0 && point < num_points;
            cells.indices[i] = static_cast<std::int32_t>(point);
        }
        if (in_range) return;
        for (std::size_t i = 0; i < values.size(); ++i) {
            const auto point = static_cast<std::int64_t>(values[i]);
            if (point >= 0 && point < num_points) continue;
            const auto cell =
                std::ranges::upper_bound(cells.offsets, static_cast<std::int64_t>(i)) - cells.offsets.begin() - 1;
            file.fail(fmt::format("cell {} of the {} uses point {}, expected 0 to {}. The file is damaged", cell, what,
                                  point, num_points - 1));
        }
    });
    return cells;
}

DataArray read_integers(const VtkXmlFile& file, const XmlElement& parent, std::string_view name, std::int64_t num_rows)
{
    const auto* element = find_named(parent, name, &file);
    if (element == nullptr) file.fail("<" + parent.name + "> has no array '" + std::string(name) + "'");
    DataArray array = file.read_array(*element, num_rows);
    if (const auto fault = integers_fault(array); !fault.empty()) file.fail(fault);
    return array;
}

Csr read_cell_group(const VtkXmlFile& file, const XmlElement& element, std::int64_t num_cells, std::int64_t num_points)
{
    if (num_cells == 0) return {};
    const DataArray offsets = read_integers(file, element, "offsets", num_cells);
    const DataArray connectivity = read_integers(file, element, "connectivity", -1);
    return read_cells(file, connectivity, offsets, num_points, "<" + element.name + ">");
}

/// Reads the layout of VTK 9.4 and later: a table of faces (points of each), and a table of the faces of each cell.
Csr read_face_tables(const VtkXmlFile& file, const XmlElement& element, const std::vector<std::uint8_t>& types,
                     std::int64_t num_points)
{
    const Csr faces = read_cells(file, read_integers(file, element, "face_connectivity", -1),
                                 read_integers(file, element, "face_offsets", -1), num_points, "faces");
    const Csr faces_of_cells = read_cells(file, read_integers(file, element, "polyhedron_to_faces", -1),
                                          read_integers(file, element, "polyhedron_offsets", std::ssize(types)),
                                          faces.num_rows(), "polyhedra (by their faces)");
    return face_streams_of(faces, faces_of_cells, types);
}

/// Reads the arrays `faces` (concatenated streams) and `faceoffsets` (the end of each cell's stream; -1 for cells that
/// are no polyhedra).
Csr read_face_streams(const VtkXmlFile& file, const XmlElement& element, const std::vector<std::uint8_t>& types,
                      std::int64_t num_points)
{
    if (!find_named(element, "faces") && find_named(element, "face_connectivity"))
        return read_face_tables(file, element, types, num_points);
    const auto num_cells = std::ssize(types);
    const DataArray faces = read_integers(file, element, "faces", -1);
    const DataArray ends = read_integers(file, element, "faceoffsets", num_cells);

    Csr streams;
    streams.offsets.resize(static_cast<std::size_t>(num_cells) + 1);
    streams.indices.resize(faces.num_values());
    with_scalar_type(faces.type(), [&]<class T>() {
        const auto values = faces.values<T>();
        const auto in_range = [](T value) {
            return static_cast<std::int64_t>(value) >= 0 &&
                   static_cast<std::int64_t>(value) <= std::numeric_limits<std::int32_t>::max();
        };
        bool all_in_range = true;
        for (std::size_t i = 0; i < values.size(); ++i) {
            all_in_range &= in_range(values[i]);
            streams.indices[i] = static_cast<std::int32_t>(values[i]);
        }
        if (!all_in_range)
            file.fail(fmt::format("array 'faces' holds {}. The file is damaged",
                                  *std::ranges::find_if_not(values, in_range)));
    });
    with_scalar_type(ends.type(), [&]<class T>() {
        const auto values = ends.values<T>();
        for (std::int64_t i = 0; i < num_cells; ++i) {
            const auto end = types[i] == kPolyhedron ? static_cast<std::int64_t>(values[i]) : streams.offsets[i];
            if (end < streams.offsets[i] || end > faces.num_values())
                file.fail(
                    fmt::format("array 'faceoffsets' holds {} for cell {}, expected {} to {}. The file is damaged", end,
                                i, streams.offsets[i], faces.num_values()));
            streams.offsets[i + 1] = end;
        }
    });
    if (streams.offsets.back() != faces.num_values())
        file.fail(fmt::format("array 'faceoffsets' ends at {}, but 'faces' has {} entries. The file is damaged",
                              streams.offsets.back(), faces.num_values()));
    return streams;
}

void read_unstructured_cells(const VtkXmlFile& file, const XmlElement& piece, Mesh& mesh)
{
    const std::int64_t num_cells = file.read_count(piece, "NumberOfCells");
    if (num_cells == 0) return;
    const XmlElement& element = file.require_child(piece, "Cells");
    mesh.cells = read_cell_group(file, element, num_cells, mesh.num_points());
    const DataArray types = read_integers(file, element, "types", num_cells);
    mesh.cell_types.resize(num_cells);
    with_scalar_type(types.type(), [&]<class T>() {
        const auto values = types.values<T>();
        for (std::int64_t cell = 0; cell < num_cells; ++cell) {
            const auto type = static_cast<std::int64_t>(values[cell]);
            if (type < 0 || type > 255)
                file.fail(fmt::format("cell {} has type {}, expected 0 to 255. The file is damaged", cell, type));
            mesh.cell_types[cell] = static_cast<std::uint8_t>(type);
            const auto size = mesh.cells.offsets[cell + 1] - mesh.cells.offsets[cell];
            if (!cell_type_of(mesh.cell_types[cell]).fits(size))
                file.fail(cell_size_fault(cell, mesh.cell_types[cell], size) + ". The file is damaged");
        }
    });
    if (!contains(mesh.cell_types, kPolyhedron)) return;
    mesh.face_streams = read_face_streams(file, element, mesh.cell_types, mesh.num_points());
    PolyhedronCheck check;
    for (std::int32_t cell = 0; cell < static_cast<std::int32_t>(num_cells); ++cell)
        if (mesh.cell_types[cell] == kPolyhedron &&
            !check.passes(cell, mesh.cells.row(cell), mesh.face_streams.row(cell)))
            file.fail(polyhedron_fault(cell, mesh.cells.row(cell), mesh.face_streams.row(cell)) +
                      ". The file is damaged");
}

void read_polydata_cells(const VtkXmlFile& file, const XmlElement& piece, Mesh& mesh)
{
    constexpr std::array groups{"Verts", "Lines", "Polys", "Strips"};
    std::array<Csr, 4> parts;
    for (int group = 0; group < 4; ++group) {
        const std::string count = std::string("NumberOf") + groups[group];
        const std::int64_t num_cells = piece.attribute(count) != nullptr ? file.read_count(piece, count) : 0;
        if (num_cells > 0)
            parts[group] =
                read_cell_group(file, file.require_child(piece, groups[group]), num_cells, mesh.num_points());
        for (std::int64_t i = 0; i < num_cells; ++i)
            mesh.cell_types.push_back(polydata_cell_type(group, parts[group].offsets[i + 1] - parts[group].offsets[i]));
    }
    const auto largest = std::ranges::max_element(parts, {}, &Csr::num_rows);
    if (largest->num_rows() == std::ssize(mesh.cell_types)) {
        mesh.cells = std::move(*largest);
        return;
    }
    for (const Csr& part : parts)
        for (std::int64_t i = 0; i < part.num_rows(); ++i) mesh.cells.push_row(part.row(i));
}

const XmlElement* points_element(const VtkXmlFile& file, const XmlElement& piece)
{
    const XmlElement* points = piece.child("Points");
    if (points == nullptr) return nullptr;
    const auto found = std::ranges::find_if(points->children, [&](const XmlElement& element) {
        return element.name == "DataArray" && file.is_of_time_step(element);
    });
    return found == points->children.end() ? nullptr : &*found;
}

Mesh read_piece_element(const VtkXmlFile& file, const XmlElement& piece, MeshKind kind)
{
    Mesh mesh;
    mesh.kind = kind;
    const std::int64_t num_points = file.read_count(piece, "NumberOfPoints");
    if (const XmlElement* element = points_element(file, piece)) {
        mesh.points = file.read_array(*element, num_points);
        if (mesh.points.num_components() != 3 || mesh.points.type() == ScalarType::String)
            file.fail(fmt::format("points are {} x {}, expected 3 x Float32 or Float64", mesh.points.num_components(),
                                  to_string(mesh.points.type())));
        if (mesh.points.type() != ScalarType::Float32 && mesh.points.type() != ScalarType::Float64)
            mesh.points = DataArray::from("Points", mesh.points.to_doubles(), 3);
        mesh.points.rename("Points");
    } else if (num_points > 0) {
        file.fail(fmt::format("<Piece> announces {} points but has no <Points>", num_points));
    }
    if (kind == MeshKind::Surface)
        read_polydata_cells(file, piece, mesh);
    else
        read_unstructured_cells(file, piece, mesh);
    mesh.point_data = read_vtk_arrays(file, piece.child("PointData"), num_points);
    mesh.cell_data = read_vtk_arrays(file, piece.child("CellData"), mesh.num_cells());
    if (has_curved_hexahedra(mesh) && !file.is_at_least(2, 1)) exchange_upright_edges(mesh);
    return mesh;
}

void require_same_arrays(const std::vector<DataArray>& a, const std::vector<DataArray>& b, const char* group,
                         const std::string& where)
{
    const auto describe = [](const DataArray& array) {
        return fmt::format("'{}' ({} x {})", array.name(), array.num_components(), to_string(array.type()));
    };
    const auto has = [](const std::vector<DataArray>& arrays, const DataArray& wanted) {
        const DataArray* found = find_array(arrays, wanted.name());
        return found != nullptr && found->type() == wanted.type() && found->num_components() == wanted.num_components();
    };
    for (const auto& [mine, others] : {std::pair(&a, &b), std::pair(&b, &a)})
        for (const DataArray& array : *mine)
            if (!has(*others, array))
                throw IoError("{}: its pieces differ: only some have the {} array {}.", where, group, describe(array));
}

void append_csr(Csr& to, const Csr& from, std::int32_t shift)
{
    const std::int64_t base = to.offsets.back();
    for (std::size_t i = 1; i < from.offsets.size(); ++i) to.offsets.push_back(base + from.offsets[i]);
    for (const std::int32_t index : from.indices) to.indices.push_back(index + shift);
}

void append_face_streams(Csr& to, Csr from, std::int64_t num_cells, std::int32_t shift)
{
    if (from.num_rows() == 0) from.offsets.assign(static_cast<std::size_t>(num_cells) + 1, 0);
    for_each_face_point(from, [&](std::int64_t, std::int32_t& point) { point += shift; });
    append_csr(to, from, 0);
}

DataArray join(std::span<const DataArray* const> arrays)
{
    const DataArray& first = *arrays.front();
    DataArray result;
    if (first.type() == ScalarType::String) {
        std::vector<std::string> strings;
        for (const DataArray* array : arrays) append(strings, array->strings());
        result = DataArray::from_strings(first.name(), std::move(strings), first.num_components());
    } else {
        std::size_t num_bytes = 0;
        for (const DataArray* array : arrays) num_bytes += array->bytes().size();
        auto bytes = std::shared_ptr<std::byte[]>(new std::byte[num_bytes]);
        std::int64_t num_rows = 0;
        std::byte* at = bytes.get();
        for (const DataArray* array : arrays) {
            at = std::ranges::copy(array->bytes(), at).out;
            num_rows += array->num_rows();
        }
        result = DataArray::view(first.name(), first.type(), num_rows, first.num_components(), bytes.get(), bytes);
    }
    describe_as(result, first);
    return result;
}

std::vector<DataArray> join_groups(const std::vector<Mesh>& meshes, std::vector<DataArray> Mesh::* group)
{
    std::vector<DataArray> joined;
    for (const DataArray& array : meshes.front().*group) {
        std::vector<const DataArray*> parts;
        for (const Mesh& mesh : meshes) parts.push_back(find_array(mesh.*group, array.name()));
        joined.push_back(join(parts));
    }
    return joined;
}

}  // namespace

std::span<const std::string_view> attribute_roles()
{
    static constexpr std::array<std::string_view, 12> roles{"Scalars",
                                                            "Vectors",
                                                            "Normals",
                                                            "TCoords",
                                                            "Tensors",
                                                            "GlobalIds",
                                                            "PedigreeIds",
                                                            "EdgeFlag",
                                                            "Tangents",
                                                            "RationalWeights",
                                                            "HigherOrderDegrees",
                                                            "ProcessIds"};
    return roles;
}

bool has_role(const DataArray& array, std::string_view role)
{
    return (" " + array.attribute + " ").find(fmt::format(" {} ", role)) != std::string::npos;
}

void add_role(DataArray& array, std::string_view role)
{
    array.attribute.append(array.attribute.empty() ? "" : " ").append(role);
}

void describe_as(DataArray& array, const DataArray& like)
{
    array.component_names = like.component_names;
    array.unit = like.unit;
    array.attribute = like.attribute;
}

void add_time(std::vector<DataArray>& field_data, double time)
{
    if (find_array(field_data, "TimeValue") == nullptr)
        field_data.push_back(DataArray::from("TimeValue", std::vector<double>{time}));
}

Csr face_streams_of(const Csr& faces, const Csr& faces_of_cells, const std::vector<std::uint8_t>& types)
{
    Csr streams;
    for (std::size_t i = 0; i < types.size(); ++i) {
        if (types[i] == kPolyhedron) {
            const auto cell_faces = faces_of_cells.row(static_cast<std::int64_t>(i));
            streams.indices.push_back(static_cast<std::int32_t>(cell_faces.size()));
            for (const std::int32_t face : cell_faces) {
                const auto points = faces.row(face);
                streams.indices.push_back(static_cast<std::int32_t>(points.size()));
                append(streams.indices, points);
            }
        }
        streams.offsets.push_back(std::ssize(streams.indices));
    }
    return streams;
}

const XmlElement* find_named(const XmlElement& parent, std::string_view name, const VtkXmlFile* of_step)
{
    for (const XmlElement& element : parent.children)
        if (const auto* found = element.attribute("Name");
            found != nullptr && *found == name && (of_step == nullptr || of_step->is_of_time_step(element)))
            return &element;
    return nullptr;
}

std::string integers_fault(const DataArray& array)
{
    if (array.type() != ScalarType::Float32 && array.type() != ScalarType::Float64 &&
        array.type() != ScalarType::String)
        return {};
    return fmt::format("array '{}' of the cells is {}, integers are expected", array.name(), to_string(array.type()));
}

int polydata_group(std::uint8_t cell_type)
{
    switch (cell_type) {
    case 1:
    case 2:
        return 0;
    case 3:
    case 4:
        return 1;
    case 5:
    case 7:
    case 9:
        return 2;
    case 6:
        return 3;
    default:
        return -1;
    }
}

std::uint8_t polydata_cell_type(int group, std::int64_t num_points)
{
    switch (group) {
    case 0:
        return num_points == 1 ? 1 : 2;
    case 1:
        return num_points == 2 ? 3 : 4;
    case 2:
        return num_points == 3 ? 5 : num_points == 4 ? 9 : 7;
    default:
        return 6;
    }
}

void add_array(std::vector<DataArray>& arrays, DataArray array, const std::string& where)
{
    if (find_array(arrays, array.name()) != nullptr)
        throw IoError("{}: there are two arrays '{}' on the same rows; rename or remove one.", where, array.name());
    arrays.push_back(std::move(array));
}

std::vector<DataArray> read_vtk_arrays(const VtkXmlFile& file, const XmlElement* group, std::int64_t num_rows)
{
    return read_vtk_arrays(file, group, [&](const XmlElement& element) { return file.read_array(element, num_rows); });
}

std::vector<DataArray> read_vtk_arrays(const VtkXmlFile& file, const XmlElement* group,
                                       const std::function<DataArray(const XmlElement&)>& read)
{
    constexpr std::array<std::string_view, 4> kTags{"DataArray", "Array", "PDataArray", "PArray"};
    std::vector<DataArray> arrays;
    if (group == nullptr) return arrays;
    for (const XmlElement& element : group->children) {
        if (!contains(kTags, element.name) || !file.is_of_time_step(element)) continue;
        DataArray array = read(element);
        if (array.name().empty()) array.rename(fmt::format("Array{}", arrays.size()));
        add_array(arrays, std::move(array), file.where());
    }
    for (const std::string_view role : attribute_roles()) {
        const auto* name = group->attribute(role);
        if (name == nullptr) continue;
        for (DataArray& array : arrays)
            if (array.name() == *name) add_role(array, role);
    }
    return arrays;
}

Mesh read_vtk_xml(const VtkXmlFile& file)
{
    const bool is_surface = file.type() == "PolyData";
    if (!is_surface && file.type() != "UnstructuredGrid")
        file.fail("expected a VTKFile of type UnstructuredGrid or PolyData, found '" + file.type() + "'");
    const MeshKind kind = is_surface ? MeshKind::Surface : MeshKind::Unstructured;
    const XmlElement& grid = file.require_child(file.root(), file.type());

    std::vector<Mesh> pieces;
    for (const XmlElement& element : grid.children)
        if (element.name == "Piece") pieces.push_back(read_piece_element(file, element, kind));
    // As in VTK.
    if (pieces.empty() && grid.attribute("NumberOfPoints") != nullptr)
        pieces.push_back(read_piece_element(file, grid, kind));
    if (pieces.empty()) {
        pieces.emplace_back();
        pieces.back().kind = kind;
    }
    auto& field_data = pieces.front().field_data;
    field_data = read_vtk_arrays(file, grid.child("FieldData"), -1);
    if (!file.times().empty()) add_time(field_data, file.times()[file.time_step()]);
    return append_meshes(std::move(pieces), file.where());
}

Mesh append_meshes(std::vector<Mesh> meshes, const std::string& where)
{
    std::vector<DataArray> field_data = meshes.front().field_data;
    // Writers omit the arrays in pieces without rows.
    if (meshes.size() > 1) {
        Mesh first = meshes.front();
        std::erase_if(meshes, [](const Mesh& mesh) { return mesh.num_points() == 0; });
        if (meshes.empty()) meshes.push_back(std::move(first));
    }
    if (meshes.size() == 1) {
        Mesh mesh = std::move(meshes.front());
        mesh.field_data = std::move(field_data);
        return mesh;
    }

    Mesh result;
    result.kind = meshes.front().kind;
    std::int64_t num_points = 0;
    bool has_polyhedra = false;
    std::vector<const DataArray*> points;
    for (const Mesh& mesh : meshes) {
        require_same_arrays(meshes.front().point_data, mesh.point_data, "point", where);
        require_same_arrays(meshes.front().cell_data, mesh.cell_data, "cell", where);
        if (mesh.points.type() != meshes.front().points.type())
            throw IoError("{}: its pieces differ: some have Float32 points, others Float64.", where);
        num_points += mesh.num_points();
        has_polyhedra = has_polyhedra || mesh.has_polyhedra();
        points.push_back(&mesh.points);
    }
    if (num_points > std::numeric_limits<std::int32_t>::max())
        throw IoError("{}: its pieces have {} points together, a mesh holds at most 2147483647.", where, num_points);
    result.points = join(points);
    std::int32_t shift = 0;
    for (const Mesh& mesh : meshes) {
        append_csr(result.cells, mesh.cells, shift);
        if (has_polyhedra) append_face_streams(result.face_streams, mesh.face_streams, mesh.num_cells(), shift);
        append(result.cell_types, mesh.cell_types);
        shift += static_cast<std::int32_t>(mesh.num_points());
    }
    result.point_data = join_groups(meshes, &Mesh::point_data);
    result.cell_data = join_groups(meshes, &Mesh::cell_data);
    result.field_data = std::move(field_data);

    if (result.kind == MeshKind::Surface) {
        const auto group_of = [&](std::int32_t cell) { return polydata_group(result.cell_types[cell]); };
        auto cells = numbers_from<std::int32_t>(0, result.num_cells());
        if (!std::ranges::is_sorted(cells, {}, group_of)) {
            std::ranges::stable_sort(cells, {}, group_of);
            auto all_points = numbers_from<std::int32_t>(0, num_points);
            result = extract_mesh(result, cells, all_points);
        }
    }
    return result;
}

}  // namespace meshard
