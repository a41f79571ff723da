// SPDX-License-Identifier: Apache-2.0
#include "partition/mesh/mesh.h"

#include "partition/error.h"
#include "partition/lists.h"
#include "partition/mesh/cell_type.h"
#include "partition/mesh/mesh_faults.h"
#include "partition/nearest_name.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>

namespace meshard {

namespace {

std::string describe_cell(const Mesh& mesh, std::int64_t cell)
{
    return fmt::format("cell {} ({})", cell, cell_type_name(mesh.cell_types[cell]));
}

void validate_points(const DataArray& points)
{
    if (points.type() != ScalarType::Float32 && points.type() != ScalarType::Float64)
        throw InvalidInput("Mesh: points are {}, expected Float32 or Float64.", to_string(points.type()));
    if (points.num_components() != 3)
        throw InvalidInput("Mesh: points have {} components, expected 3.", points.num_components());
}

void validate_cell_types(const Mesh& mesh)
{
    if (std::ssize(mesh.cell_types) != mesh.num_cells())
        throw InvalidInput("Mesh: there are {} cell types for {} cells.", mesh.cell_types.size(), mesh.num_cells());
    for (std::int64_t i = 0; i < mesh.num_cells(); ++i) {
        const auto num_points = std::ssize(mesh.cells.row(i));
        if (!cell_type_of(mesh.cell_types[i]).fits(num_points))
            throw InvalidInput("Mesh: {}.", cell_size_fault(i, mesh.cell_types[i], num_points));
    }
}

void validate_face_streams(const Mesh& mesh)
{
    const bool has_polyhedra = contains(mesh.cell_types, 42);
    const auto expected = has_polyhedra ? mesh.num_cells() : 0;
    if (mesh.face_streams.num_rows() != expected)
        throw InvalidInput("Mesh: there are {} face streams, expected {}{}", mesh.face_streams.num_rows(), expected,
                           has_polyhedra ? " (one row a cell)." : ", because no cell is a polyhedron.");
    if (!has_polyhedra) return;
    // Entries are counts as well as points, so that the bound that Csr checks is the larger of both.
    mesh.face_streams.validate(INT32_MAX);
    PolyhedronCheck check;
    for (std::int64_t i = 0; i < mesh.num_cells(); ++i) {
        const auto stream = mesh.face_streams.row(i);
        if (mesh.cell_types[i] == 42) {
            if (!check.passes(static_cast<std::int32_t>(i), mesh.cells.row(i), stream))
                throw InvalidInput("Mesh: {}.", polyhedron_fault(i, mesh.cells.row(i), stream));
        } else if (!stream.empty()) {
            throw InvalidInput("Mesh: the face stream of {} is not empty; only polyhedra have one.",
                               describe_cell(mesh, i));
        }
    }
}

void validate_arrays(std::span<const DataArray> arrays, const char* group, std::int64_t num_rows)
{
    std::set<std::string_view> names;
    for (const auto& array : arrays) {
        const auto what = std::string("Mesh: ") + group + " array '" + array.name() + "' ";
        if (!names.insert(array.name()).second) throw InvalidInput("{}exists twice.", what);
        if (num_rows >= 0 && array.num_rows() != num_rows)
            throw InvalidInput("{}has {} rows, expected {} (one a {}).", what, array.num_rows(), num_rows, group);
        if (!array.component_names.empty() &&
            array.component_names.size() != static_cast<std::size_t>(array.num_components()))
            throw InvalidInput("{}has {} component names for {} components.", what, array.component_names.size(),
                               array.num_components());
    }
}

std::string array_difference(const DataArray& a, const DataArray& b, const std::string& what)
{
    if (a.type() != b.type())
        return what + ": " + std::string(to_string(a.type())) + " against " + std::string(to_string(b.type())) + ".";
    if (a.num_rows() != b.num_rows() || a.num_components() != b.num_components())
        return fmt::format("{}: {} x {} values against {} x {}.", what, a.num_rows(), a.num_components(), b.num_rows(),
                           b.num_components());
    if (a.attribute != b.attribute) return what + ": attribute '" + a.attribute + "' against '" + b.attribute + "'.";
    if (a.unit != b.unit) return what + ": unit '" + a.unit + "' against '" + b.unit + "'.";
    if (a.component_names != b.component_names) return what + ": the names of the components differ.";
    if (a.same_bits(b)) return "";
    const auto row_of = [&](auto x, auto y) {
        return std::to_string((std::ranges::mismatch(x, y).in1 - x.begin()) * a.num_rows() / std::ssize(x));
    };
    const auto row = a.type() == ScalarType::String ? row_of(a.strings(), b.strings()) : row_of(a.bytes(), b.bytes());
    return what + ": the first row with other bits is " + row + ".";
}

std::string group_difference(std::span<const DataArray> a, std::span<const DataArray> b, const std::string& group)
{
    for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
        if (i >= a.size()) return "Only the second mesh has " + group + " array '" + b[i].name() + "'.";
        if (i >= b.size()) return "Only the first mesh has " + group + " array '" + a[i].name() + "'.";
        if (a[i].name() != b[i].name())
            return fmt::format("The names of {} array {} differ: '{}' against '{}'.", group, i, a[i].name(),
                               b[i].name());
        if (const auto found = array_difference(a[i], b[i], group + " array '" + a[i].name() + "'"); !found.empty())
            return found;
    }
    return "";
}

std::string csr_difference(const Csr& a, const Csr& b, const std::string& what)
{
    if (a.num_rows() != b.num_rows()) return fmt::format("{}: {} rows against {}.", what, a.num_rows(), b.num_rows());
    for (std::int64_t i = 0; i < a.num_rows(); ++i)
        if (!std::ranges::equal(a.row(i), b.row(i)))
            return fmt::format("{}: the first that differs is that of cell {}.", what, i);
    return "";
}

// Row i of the result is row rows[i] of `from`.
Csr gather_rows(const Csr& from, std::span<const std::int32_t> rows)
{
    Csr to;
    to.offsets.assign(rows.size() + 1, 0);
    for (std::size_t i = 0; i < rows.size(); ++i)
        to.offsets[i + 1] = to.offsets[i] + (from.offsets[rows[i] + 1] - from.offsets[rows[i]]);
    to.indices.resize(to.offsets.back());
    for (std::size_t i = 0; i < rows.size(); ++i)
        std::ranges::copy(from.row(rows[i]), to.indices.begin() + to.offsets[i]);
    return to;
}

std::string quoted_list(std::span<const DataArray> arrays)
{
    std::string text;
    for (std::size_t i = 0; i < arrays.size(); ++i)
        text += (i == 0 ? "'" : i + 1 == arrays.size() ? " and '" : ", '") + arrays[i].name() + "'";
    return text;
}

std::string counted(std::int64_t count, const std::string& noun)
{
    return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace

void Mesh::validate() const
{
    validate_points(points);
    try {
        cells.validate(num_points());
    } catch (const InvalidInput& error) {
        throw InvalidInput(std::string("Mesh: cells are not valid. ") + error.what());
    }
    validate_cell_types(*this);
    validate_face_streams(*this);
    validate_arrays(point_data, "point", num_points());
    validate_arrays(cell_data, "cell", num_cells());
    validate_arrays(field_data, "field", -1);
}

const DataArray* find_array(std::span<const DataArray> arrays, std::string_view name)
{
    const auto found = std::ranges::find(arrays, name, &DataArray::name);
    return found == arrays.end() ? nullptr : &*found;
}

const DataArray& require_array(std::span<const DataArray> arrays, std::string_view name, std::string_view where,
                               std::string_view group)
{
    if (const auto* found = find_array(arrays, name)) return *found;
    auto message = std::string(where) + " has no " + std::string(group) + " field '" + std::string(name) + "'.";
    if (arrays.empty()) throw InvalidInput("{} It has no {} fields at all.", message, group);
    std::vector<std::string> names;
    for (const auto& array : arrays) names.push_back(array.name());
    throw InvalidInput("{} It has {}.{}", message, quoted_list(arrays), suggestion(name, names));
}

std::string cell_type_name(std::uint8_t cell_type)
{
    const auto name = cell_type_of(cell_type).name;
    return name.empty() ? fmt::format("cell type {}", cell_type) : std::string(name);
}

int cell_dimension(std::uint8_t cell_type)
{
    return cell_type_of(cell_type).dimension;
}

Mesh extract_mesh(const Mesh& mesh, std::span<const std::int32_t> cells, std::span<const std::int32_t> points)
{
    std::vector<std::int32_t> local_points(mesh.num_points(), -1);
    for (std::size_t i = 0; i < points.size(); ++i) local_points[points[i]] = static_cast<std::int32_t>(i);
    return extract_mesh(mesh, cells, points, local_points);
}

Mesh extract_mesh(const Mesh& mesh, std::span<const std::int32_t> cells, std::span<const std::int32_t> points,
                  std::span<const std::int32_t> local_points)
{
    const auto to_local = [&](std::int32_t& point) {
        if (local_points[point] < 0)
            throw InvalidInput("extract_mesh: a chosen cell uses point {}, which is not among the chosen "
                               "points. Pass every point of the cells.",
                               point);
        point = local_points[point];
    };
    Mesh part;
    part.kind = mesh.kind;
    part.points = mesh.points.gather(points);
    part.cells = gather_rows(mesh.cells, cells);
    for (auto& point : part.cells.indices) to_local(point);
    part.cell_types.resize(cells.size());
    std::ranges::transform(cells, part.cell_types.begin(), [&](std::int32_t cell) { return mesh.cell_types[cell]; });
    if (mesh.has_polyhedra() && contains(part.cell_types, 42)) {
        part.face_streams = gather_rows(mesh.face_streams, cells);
        for_each_face_point(part.face_streams, [&](std::int64_t, std::int32_t& point) { to_local(point); });
    }
    for (const auto& array : mesh.point_data) part.point_data.push_back(array.gather(points));
    for (const auto& array : mesh.cell_data) part.cell_data.push_back(array.gather(cells));
    part.field_data = mesh.field_data;
    return part;
}

std::string difference(const Mesh& a, const Mesh& b)
{
    if (a.kind != b.kind) return "One mesh is a surface (polygonal data), the other an unstructured grid.";
    if (auto found = array_difference(a.points, b.points, "points"); !found.empty()) return found;
    if (auto found = csr_difference(a.cells, b.cells, "cells"); !found.empty()) return found;
    if (a.cell_types != b.cell_types) {
        const auto cell = std::ranges::mismatch(a.cell_types, b.cell_types).in1 - a.cell_types.begin();
        return fmt::format("cell types: the first that differs is that of cell {}.", cell);
    }
    if (auto found = csr_difference(a.face_streams, b.face_streams, "face streams"); !found.empty()) return found;
    if (auto found = group_difference(a.point_data, b.point_data, "point"); !found.empty()) return found;
    if (auto found = group_difference(a.cell_data, b.cell_data, "cell"); !found.empty()) return found;
    return group_difference(a.field_data, b.field_data, "field");
}

std::string to_string(const Mesh& mesh)
{
    return "Mesh: " + counted(mesh.num_cells(), "cell") + ", " + counted(mesh.num_points(), "point") + ", " +
           counted(std::ssize(mesh.cell_data), "cell array") + ", " +
           counted(std::ssize(mesh.point_data), "point array");
}

}  // namespace meshard
