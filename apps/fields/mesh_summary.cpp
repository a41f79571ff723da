// SPDX-License-Identifier: Apache-2.0
#include "apps/fields/mesh_summary.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace meshard {

namespace {

void widen(ValueRange& range, double value)
{
    if (!range)
        range = {value, value};
    else
        range = {std::min((*range)[0], value), std::max((*range)[1], value)};
}

template <class T>
void measure_values(const DataArray& array, ArraySummary& summary)
{
    const auto values = array.values<T>();
    const auto num_components = static_cast<std::size_t>(array.num_components());
    summary.ranges.resize(num_components);
    for (std::size_t row = 0; row + num_components <= values.size(); row += num_components) {
        double square = 0;
        for (std::size_t k = 0; k < num_components; ++k) {
            const auto value = static_cast<double>(values[row + k]);
            square += value * value;
            if (std::isfinite(value))
                widen(summary.ranges[k], value);
            else if (std::isnan(value))
                ++summary.num_nan;
            else
                ++summary.num_infinite;
        }
        if (num_components == 1) continue;
        double length = std::sqrt(square);
        if (!std::isnormal(square) && !std::isnan(square)) {  // zero, or squares too large or too small for a double
            length = 0;
            for (std::size_t k = 0; k < num_components; ++k)  // hypot of two numbers asks for glibc 2.35
                length = std::hypot(length, static_cast<double>(values[row + k]), 0.0);
        }
        if (std::isfinite(length)) widen(summary.magnitude, length);
    }
}

std::uint64_t bytes_of(const Csr& csr)
{
    return csr.offsets.size() * sizeof(csr.offsets[0]) + csr.indices.size() * sizeof(csr.indices[0]);
}

std::uint64_t bytes_of(const DataArray& array)
{
    if (array.type() != ScalarType::String) return array.bytes().size();
    std::uint64_t bytes = 0;
    for (const std::string& text : array.strings()) bytes += sizeof(text) + text.size();
    return bytes;
}

std::uint64_t bytes_of(const Mesh& mesh)
{
    std::uint64_t bytes =
        bytes_of(mesh.points) + bytes_of(mesh.cells) + mesh.cell_types.size() + bytes_of(mesh.face_streams);
    for (const auto* group : {&mesh.point_data, &mesh.cell_data, &mesh.field_data}) {
        for (const DataArray& array : *group) bytes += bytes_of(array);
    }
    return bytes;
}

}  // namespace

ArraySummary summarize(const DataArray& array, std::string association)
{
    ArraySummary summary;
    summary.association = std::move(association);
    summary.name = array.name();
    summary.type = to_string(array.type());
    summary.attribute = array.attribute;
    summary.num_rows = array.num_rows();
    summary.num_components = array.num_components();
    if (array.type() == ScalarType::String)
        summary.strings.assign(array.strings().begin(), array.strings().end());
    else
        with_scalar_type(array.type(), [&]<class T>() { measure_values<T>(array, summary); });
    return summary;
}

MeshSummary summarize(const Mesh& mesh)
{
    MeshSummary summary;
    summary.kind = mesh.is_point_cloud() ? "point cloud" : mesh.kind == MeshKind::Surface ? "surface" : "unstructured";
    summary.num_cells = mesh.num_cells();
    summary.num_points = mesh.num_points();

    std::array<std::int64_t, 256> counts{};
    for (const std::uint8_t type : mesh.cell_types) ++counts[type];
    for (std::size_t type = 0; type < counts.size(); ++type) {
        if (counts[type] == 0) continue;
        summary.cell_types.emplace_back(cell_type_name(static_cast<std::uint8_t>(type)), counts[type]);
        summary.dimension = std::max(summary.dimension, cell_dimension(static_cast<std::uint8_t>(type)));
    }
    std::ranges::stable_sort(summary.cell_types, std::greater<>(), [](const auto& entry) { return entry.second; });

    summary.points = summarize(mesh.points, "point");
    for (const DataArray& array : mesh.point_data) summary.arrays.push_back(summarize(array, "point"));
    for (const DataArray& array : mesh.cell_data) summary.arrays.push_back(summarize(array, "cell"));
    for (const DataArray& array : mesh.field_data) summary.arrays.push_back(summarize(array, "field"));

    if (summary.dimension == 2) {
        summary.edges = surface_edges(mesh);
        summary.area = surface_area(mesh);
        summary.facing = surface_facing(mesh);
        if (summary.edges->is_closed() && summary.facing.facing() != Facing::Mixed && first_strip(mesh) < 0 &&
            areas_cancel(area_vectors(mesh)))
            summary.volume = enclosed_volume(mesh);
    }
    summary.memory_bytes = bytes_of(mesh);
    return summary;
}

}  // namespace meshard
