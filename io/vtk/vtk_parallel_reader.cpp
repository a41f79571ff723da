// SPDX-License-Identifier: Apache-2.0
#include "io/vtk/vtk_parallel_reader.h"

#include "io/bytes/atomic_file.h"
#include "io/bytes/content_hash.h"
#include "io/bytes/read_warnings.h"
#include "io/vtk/reading_conventions.h"
#include "io/vtk/vtk_bridge.h"
#include "io/vtk/vtk_xml_reader.h"
#include "partition/error.h"
#include "partition/lists.h"
#include "partition/nearest_name.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace meshard {

namespace {

constexpr std::uint8_t duplicate_bit = 1;  // in vtkGhostType: another piece owns the row

std::vector<bool> duplicates(const std::vector<DataArray>& arrays, std::int64_t num_rows)
{
    std::vector<bool> flags(num_rows, false);
    const DataArray* ghost_type = find_array(arrays, "vtkGhostType");
    if (ghost_type == nullptr || ghost_type->type() != ScalarType::UInt8 || ghost_type->num_components() != 1)
        return flags;
    const auto values = ghost_type->values<std::uint8_t>();
    for (std::size_t i = 0; i < flags.size(); ++i) flags[i] = (values[i] & duplicate_bit) != 0;
    return flags;
}

/// Global ids of the rows; empty if the pieces have none.
std::vector<std::int64_t> global_ids(const std::vector<DataArray>& arrays, std::string_view name)
{
    const DataArray* array = find_array(arrays, name);
    if (array == nullptr || array->num_components() != 1 || array->type() == ScalarType::String ||
        array->type() == ScalarType::Float32 || array->type() == ScalarType::Float64)
        return {};
    return with_scalar_type(array->type(), [&]<class T>() {
        const auto values = array->values<T>();
        return std::vector<std::int64_t>(values.begin(), values.end());
    });
}

/// The cells that are kept, in the order of the result.
std::vector<std::int32_t> choose_cells(const Mesh& mesh, const std::string& where)
{
    const auto is_duplicate = duplicates(mesh.cell_data, mesh.num_cells());
    std::vector<std::int32_t> cells;
    for (std::int32_t i = 0; i < mesh.num_cells(); ++i)
        if (!is_duplicate[i]) cells.push_back(i);

    const auto ids = global_ids(mesh.cell_data, "GlobalCellIds");
    if (ids.empty()) return cells;
    const auto key = [&](std::int32_t cell) {
        const int group = mesh.kind == MeshKind::Surface ? polydata_group(mesh.cell_types[cell]) : 0;
        return std::pair(group, ids[cell]);
    };
    std::ranges::stable_sort(cells, {}, key);
    const auto twice = std::ranges::adjacent_find(cells, {}, key);
    if (twice != cells.end())
        throw IoError("{}: cell {} of GlobalCellIds is in its pieces twice without being marked as a "
                      "duplicate in vtkGhostType. Remove the ids or mark the copies.",
                      where, ids[*twice]);
    return cells;
}

/// Describes invalid point ids: two rows with one id at different positions; empty if there are none. `rows` are sorted
/// by id.
std::string difference_of_places(const DataArray& points, std::span<const std::int32_t> rows,
                                 std::span<const std::int64_t> ids)
{
    return with_scalar_type(points.type(), [&]<class T>() -> std::string {
        const auto xyz = points.values<T>();
        const auto place = [&](std::int32_t row) { return xyz.subspan(3 * static_cast<std::size_t>(row), 3); };
        const auto text = [&](std::int32_t row) {
            return fmt::format("({:g} {:g} {:g})", 1.0 * place(row)[0], 1.0 * place(row)[1], 1.0 * place(row)[2]);
        };
        double tolerance = -1;
        for (std::size_t i = 1; i < rows.size(); ++i) {
            const auto a = place(rows[i - 1]), b = place(rows[i]);
            if (ids[rows[i]] != ids[rows[i - 1]] || std::ranges::equal(a, b)) continue;
            if (tolerance < 0) {  // copies of a moving point may differ by rounding
                double square = 0;
                for (std::size_t axis = 0; axis < 3; ++axis) {
                    double least = std::numeric_limits<double>::infinity(), most = -least;
                    for (std::size_t k = axis; k < xyz.size(); k += 3) {
                        least = std::min(least, static_cast<double>(xyz[k]));
                        most = std::max(most, static_cast<double>(xyz[k]));
                    }
                    square += (most - least) * (most - least);
                }
                tolerance = 1e-5 * std::sqrt(square);
            }
            for (std::size_t axis = 0; axis < 3; ++axis)
                if (std::abs(static_cast<double>(a[axis]) - static_cast<double>(b[axis])) > tolerance)
                    return fmt::format("GlobalPointIds name one point, {}, at two places, {} and {}", ids[rows[i]],
                                       text(rows[i - 1]), text(rows[i]));
        }
        return {};
    });
}

/// Merges all copies of a point: cells use the row that owns it. Returns the rows that are kept, in the order of the
/// result.
std::vector<std::int32_t> choose_points(Mesh& mesh, const std::vector<std::int32_t>& cells, const std::string& where,
                                        const ReadOptions& options)
{
    const auto is_duplicate = duplicates(mesh.point_data, mesh.num_points());
    auto ids = global_ids(mesh.point_data, "GlobalPointIds");
    auto rows = numbers_from<std::int32_t>(0, mesh.num_points());

    std::vector<std::int32_t> representative = rows;
    if (!ids.empty()) {
        std::ranges::sort(rows, {},
                          [&](std::int32_t row) { return std::tuple(ids[row], bool(is_duplicate[row]), row); });
        if (const std::string fault = difference_of_places(mesh.points, rows, ids); !fault.empty()) {
            const std::string file = where.substr(where.find(": ") + 2);
            deliver_read_warnings(
                {file + ": its " + fault + "; they are not used, and points that pieces share stay apart"}, options);
            ids.clear();
            rows = representative;
        }
    }
    if (!ids.empty()) {
        for (std::size_t i = 1; i < rows.size(); ++i)
            if (ids[rows[i]] == ids[rows[i - 1]]) representative[rows[i]] = representative[rows[i - 1]];
        for (std::int32_t& point : mesh.cells.indices) point = representative[point];
        for_each_face_point(mesh.face_streams,
                            [&](std::int64_t, std::int32_t& point) { point = representative[point]; });
    }
    std::vector<bool> is_used(representative.size(), false);
    for (const std::int32_t cell : cells)
        for (const std::int32_t point : mesh.cells.row(cell)) is_used[point] = true;
    std::erase_if(rows,
                  [&](std::int32_t row) { return representative[row] != row || (is_duplicate[row] && !is_used[row]); });
    return rows;
}

void drop_plain_ghost_type(std::vector<DataArray>& arrays)
{
    std::erase_if(arrays, [](const DataArray& array) {
        if (array.name() != "vtkGhostType" || array.type() != ScalarType::UInt8) return false;
        const auto values = array.values<std::uint8_t>();
        return std::ranges::all_of(values, [](std::uint8_t value) { return (value & ~duplicate_bit) == 0; });
    });
}

}  // namespace

Mesh merge_pieces(std::vector<Mesh> pieces, MeshKind kind, const std::string& where, const ReadOptions& options)
{
    if (pieces.empty()) {
        pieces.emplace_back();
        pieces.back().kind = kind;
    }
    Mesh mesh = append_meshes(std::move(pieces), where);
    const auto cells = choose_cells(mesh, where);
    const auto points = choose_points(mesh, cells, where, options);
    Mesh merged = extract_mesh(mesh, cells, points);
    drop_plain_ghost_type(merged.point_data);
    drop_plain_ghost_type(merged.cell_data);
    return merged;
}

Mesh read_vtk_piece(const std::filesystem::path& path, const ReadOptions& options)
{
    VtkXmlFile file(path);
    std::vector<std::string> warnings;
    for (const std::string& text : file.warnings()) warnings.push_back(path.string() + ": " + text);
    if (options.time) file.choose_time(*options.time);
    if (!options.time && file.times().size() > 1)
        warnings.push_back(
            fmt::format("{}: it has {} times, of which the first is read, {}; convert --time chooses another",
                        path.string(), file.times().size(), file.times().front()));
    // VTK's readers crash with some unknown compressor names.
    const bool for_vtk = !file.has_known_compressor() &&
                         (file.compressor() == "vtkLZMADataCompressor" || file.compressor() == "vtkLZ4DataCompressor");
    Mesh mesh = for_vtk ? read_with_vtk(path) : read_vtk_xml(file);
    apply_reading_conventions(mesh, path.string(), warnings);
    deliver_read_warnings(warnings, options);
    return mesh;
}

Mesh read_vtk_parallel(const std::filesystem::path& path, const ReadOptions& options)
{
    const VtkXmlFile file(path);
    const bool is_surface = file.type() == "PPolyData";
    if (!is_surface && file.type() != "PUnstructuredGrid")
        file.fail("expected a VTKFile of type PUnstructuredGrid or PPolyData, found '" + file.type() + "'");

    std::vector<Mesh> pieces;
    const XmlElement& index = file.require_child(file.root(), file.type());
    for (const XmlElement& element : index.children) {
        if (element.name != "Piece") continue;
        const auto* source = element.attribute("Source");
        if (source == nullptr) file.fail(fmt::format("<Piece> number {} has no Source", pieces.size()));
        const auto piece_path = listed_file(path, *source);
        const auto extension = lower_extension(piece_path);
        if (extension != (is_surface ? ".vtp" : ".vtu"))
            file.fail("piece '" + *source + "' is no " + (is_surface ? ".vtp" : ".vtu") + " file");
        if (const auto* const written = element.attribute("Hash")) {
            const std::string hash = hash_file(piece_path);
            if (hash != *written)
                file.fail("piece '" + *source + "' has the hash " + hash + ", when it was written " + *written +
                          ": its content was changed. Cut the source again, or remove Hash from the index to read the "
                          "piece as it is");
        }
        pieces.push_back(read_vtk_piece(piece_path, options));
    }
    if (const auto* const written = index.attribute("NumberOfPieces");
        written && *written != std::to_string(pieces.size()))
        file.fail(fmt::format("lists {} pieces, when it was written {}: it was changed. Cut the source again",
                              pieces.size(), *written));
    const MeshKind kind = is_surface ? MeshKind::Surface : MeshKind::Unstructured;
    for (const Mesh& piece : pieces)
        if (piece.kind != kind) file.fail("its pieces are of another kind than it is itself");
    return merge_pieces(std::move(pieces), kind, file.where(), options);
}

}  // namespace meshard
