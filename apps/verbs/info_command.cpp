// SPDX-License-Identifier: Apache-2.0
// meshard info: lists the contents of a mesh file, a shards folder or a checkpoint.
#include "apps/console/json_report.h"
#include "apps/console/text_table.h"
#include "apps/fields/mesh_summary.h"
#include "apps/fields/series_summary.h"
#include "apps/learning/checkpoints/checkpoint_conversion.h"
#include "apps/program/command_line.h"
#include "apps/program/options.h"
#include "apps/program/sibling_program.h"
#include "apps/program/verbs.h"
#include "io/checkpoints/model_checkpoint.h"
#include "io/foam/foam_reader.h"
#include "io/mesh_io.h"
#include "io/series.h"
#include "io/shards/manifest.h"
#include "io/vtk/grid_file.h"
#include "partition/mesh/mesh_faults.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <iostream>
#include <optional>

namespace meshard {

namespace {

Json to_json(const ValueRange& range)
{
    return range ? Json(*range) : Json(nullptr);
}

Json to_json(const ArraySummary& array)
{
    Json json{{"association", array.association},   {"name", array.name},     {"type", array.type},
              {"components", array.num_components}, {"rows", array.num_rows}, {"attribute", array.attribute}};
    if (array.ranges.empty()) {
        json["values"] = array.strings;
        return json;
    }
    Json ranges = Json::array();
    ValueRange all;
    for (const ValueRange& range : array.ranges) {
        ranges.push_back(to_json(range));
        if (range) all = all ? ValueRange({std::min((*all)[0], (*range)[0]), std::max((*all)[1], (*range)[1])}) : range;
    }
    json["min"] = all ? Json((*all)[0]) : Json(nullptr);
    json["max"] = all ? Json((*all)[1]) : Json(nullptr);
    json["component_ranges"] = std::move(ranges);
    if (array.num_components > 1) json["magnitude_range"] = to_json(array.magnitude);
    json["nan_count"] = array.num_nan;
    json["infinite_count"] = array.num_infinite;
    return json;
}

/// The states of a file with several, and what differs between them where that was asked for.
struct SeriesReport {
    std::vector<SeriesState> states;
    std::optional<SeriesChanges> changes;

    bool is_series() const { return states.size() > 1; }
};

Json to_json(const SeriesReport& series)
{
    const SeriesTimes times = summarize(series.states);
    Json json{{"num_states", series.states.size()},
              {"first_time", times.first},
              {"last_time", times.last},
              {"even_steps", times.are_even()},
              {"least_step", times.least_step},
              {"most_step", times.most_step},
              {"times", Json::array()}};
    for (const SeriesState& state : series.states) json["times"].push_back(state.time);
    if (!series.changes) return json;
    Json arrays = Json::array();
    for (const ArrayOverTime& array : series.changes->arrays)
        arrays.push_back({{"association", array.association},
                          {"name", array.name},
                          {"num_states", array.num_states},
                          {"changes", array.changes}});
    json["points_change"] = series.changes->points;
    json["cells_change"] = series.changes->cells;
    json["arrays"] = std::move(arrays);
    return json;
}

Json to_json(const std::string& file, const MeshSummary& mesh)
{
    Json json{{"file", file},
              {"kind", mesh.kind},
              {"dimension", mesh.dimension},
              {"num_cells", mesh.num_cells},
              {"num_points", mesh.num_points},
              {"cell_types", Json::object()},
              {"bounds", Json::array()},
              {"point_type", mesh.points.type},
              {"arrays", Json::array()}};
    for (const auto& [name, count] : mesh.cell_types) json["cell_types"][name] = count;
    for (const ValueRange& range : mesh.points.ranges) json["bounds"].push_back(to_json(range));
    json["point_nan_count"] = mesh.points.num_nan;
    for (const ArraySummary& array : mesh.arrays) json["arrays"].push_back(to_json(array));
    if (mesh.edges) {
        json["surface"] = {{"closed", mesh.edges->is_closed()},
                           {"num_edges", mesh.edges->num_edges},
                           {"boundary_edges", mesh.edges->num_boundary},
                           {"non_manifold_edges", mesh.edges->num_non_manifold},
                           {"area", mesh.area},
                           {"normals", to_string(mesh.facing.facing())},
                           {"enclosed_volume", mesh.volume ? Json(*mesh.volume) : Json(nullptr)}};
    }
    json["memory_bytes"] = mesh.memory_bytes;
    return json;
}

std::string range_text(const ValueRange& range)
{
    return range ? number_text((*range)[0]) + " to " + number_text((*range)[1]) : "no finite value";
}

/// Returns the range of a scalar or of a vector's magnitude, or the first strings of a String array.
std::string content_text(const ArraySummary& array)
{
    if (array.ranges.empty()) {
        std::string text;
        for (std::size_t i = 0; i < std::min<std::size_t>(array.strings.size(), 8); ++i) {
            text += (i == 0 ? "'" : ", '") + array.strings[i] + "'";
        }
        return array.strings.size() > 8 ? text + ", ..." : text;
    }
    if (array.num_rows == 0) return "empty";
    return array.num_components == 1 ? range_text(array.ranges[0]) : "|.| " + range_text(array.magnitude);
}

std::string type_text(const std::string& type, std::int32_t num_components)
{
    return num_components == 1 ? type : type + " x " + std::to_string(num_components);
}

void print_surface(const MeshSummary& mesh)
{
    const SurfaceEdges& edges = *mesh.edges;
    std::cout << "  surface     ";
    const auto facing = mesh.facing.facing();
    if (!edges.is_closed())
        std::cout << "open, " << count_text(edges.num_boundary, "boundary edge");
    else if (mesh.volume)
        std::cout << "closed, encloses " << number_text(std::abs(*mesh.volume));
    else
        std::cout << (facing == Facing::Mixed
                          ? "closed"
                          : "closed, but its areas do not cancel: polygons are there twice or within the body");
    if (facing == Facing::Inward) std::cout << ", normals point inwards";
    if (facing == Facing::Mixed)
        std::cout << ", normals of "
                  << number_text(100 * mesh.facing.inward / (mesh.facing.inward + mesh.facing.outward))
                  << " % of the area point inwards";
    if (edges.num_non_manifold > 0) {
        std::cout << ", " << count_text(edges.num_non_manifold, "edge") << " of more than two polygons";
    }
    std::cout << ", area " << number_text(mesh.area) << '\n';
}

/// @param unit   of the times; empty: unknown
void print_times(const SeriesReport& series, const std::string& unit = {})
{
    const SeriesTimes times = summarize(series.states);
    std::cout << "  states      " << series.states.size() << ", times " << number_text(times.first) << " to "
              << number_text(times.last) << (times.are_even() ? ", even steps of " : ", uneven steps of ");
    if (times.are_even())
        std::cout << number_text((times.last - times.first) / static_cast<double>(series.states.size() - 1));
    else
        std::cout << number_text(times.least_step) << " to " << number_text(times.most_step);
    std::cout << (unit.empty() ? "" : ", in ") << unit << '\n';
}

void print(const SeriesChanges& changes, std::size_t num_states)
{
    const auto text = [](bool is_changing) { return is_changing ? "changes" : "constant"; };
    std::cout << "  over all states\n";
    TextTable table("llll");
    table.add_row({"  points", "", text(changes.points)});
    table.add_row({"  cells", "", text(changes.cells)});
    for (const ArrayOverTime& array : changes.arrays)
        table.add_row(
            {"  " + array.association, array.name, text(array.changes),
             array.num_states == num_states ? "" : fmt::format("in {} of {} states", array.num_states, num_states)});
    std::cout << table;
}

void print(const std::string& file, const MeshSummary& mesh, const SeriesReport& series)
{
    std::cout << file << ": " << mesh.kind << (mesh.num_cells > 0 ? " mesh, " : ", ");
    if (mesh.num_cells > 0) std::cout << count_text(mesh.num_cells, "cell") << ", ";
    std::cout << count_text(mesh.num_points, "point") << " (" << mesh.points.type << ")\n";
    if (series.is_series()) print_times(series);
    if (!mesh.cell_types.empty()) {
        std::cout << "  cells       ";
        for (std::size_t i = 0; i < mesh.cell_types.size(); ++i) {
            std::cout << (i == 0 ? "" : ", ") << mesh.cell_types[i].second << ' ' << mesh.cell_types[i].first;
        }
        std::cout << '\n';
    }
    for (int d = 0; d < 3 && mesh.num_points > 0; ++d) {
        std::cout << (d == 0 ? "  bounds      " : "              ") << "xyz"[d] << ' '
                  << range_text(mesh.points.ranges[d]) << '\n';
    }
    if (mesh.points.num_nan + mesh.points.num_infinite > 0) {
        std::cout << "  WARNING     " << mesh.points.num_nan + mesh.points.num_infinite
                  << " coordinates are not finite\n";
    }
    if (mesh.edges) print_surface(mesh);
    std::cout << "  memory      " << bytes_text(mesh.memory_bytes) << " for the mesh alone\n";
    if (mesh.arrays.empty()) {
        std::cout << "  arrays      none\n";
        return;
    }
    std::cout << "  arrays\n";
    TextTable table("lllll");
    for (const ArraySummary& array : mesh.arrays) {
        std::string faults;
        if (array.num_nan > 0) faults += std::to_string(array.num_nan) + " NaN ";
        if (array.num_infinite > 0) faults += std::to_string(array.num_infinite) + " infinite";
        table.add_row({"  " + array.association, array.name, type_text(array.type, array.num_components),
                       content_text(array), faults});
    }
    std::cout << table;
}

/// The states of `file`. That they cannot be listed is a warning unless they are to be compared: the mesh was read.
SeriesReport report_series(const std::string& file, bool with_changes)
{
    SeriesReport series;
    try {
        series.states = read_series(file);
    } catch (const Error& error) {
        if (with_changes) throw;
        warn("info", "its states cannot be listed: " + without_function_name(error.what()));
    }
    if (!with_changes) return series;
    if (!series.is_series()) throw UsageError("{} has one state; --changes compares several. Leave it out.", file);
    const std::size_t num_states = series.states.size();
    series.changes = compare_states(series.states, [&](std::size_t num_read) {
        show_progress(fmt::format("{} of {} states", num_read, num_states),
                      static_cast<double>(num_read) / static_cast<double>(num_states));
    });
    show_progress("");
    return series;
}

Json to_json(const std::string& folder, const Manifest& manifest)
{
    Json json{{"folder", folder},
              {"kind", "shards"},
              {"mesh_kind", manifest.kind == MeshKind::Surface ? "surface" : "unstructured"},
              {"num_cells", manifest.num_cells},
              {"num_points", manifest.num_points},
              {"num_parts", manifest.num_parts()},
              {"ghost_layers", manifest.num_ghost_layers},
              {"method", manifest.info.method},
              {"seed", manifest.info.seed},
              {"options", Json::object()},
              {"source", manifest.info.source},
              {"source_hash", manifest.info.source_hash},
              {"bounds", Json::array()},
              {"arrays", Json::array()},
              {"parts", Json::array()}};
    for (const auto& [name, value] : manifest.info.options) json["options"][name] = value;
    for (int d = 0; d < 3; ++d) json["bounds"].push_back({manifest.bounds[2 * d], manifest.bounds[2 * d + 1]});
    for (const ManifestArray& array : manifest.arrays) {
        json["arrays"].push_back({{"association", array.group},
                                  {"name", array.name},
                                  {"type", to_string(array.type)},
                                  {"components", array.num_components},
                                  {"attribute", array.attribute}});
    }
    for (const ManifestPart& part : manifest.parts) {
        json["parts"].push_back({{"file", part.file},
                                 {"cells", part.num_owned_cells},
                                 {"ghost_cells", part.num_ghost_cells},
                                 {"points", part.num_owned_points},
                                 {"ghost_points", part.num_ghost_points},
                                 {"bytes", part.num_bytes}});
    }
    return json;
}

void print(const std::string& folder, const Manifest& manifest)
{
    std::cout << folder << ": shards of '" << manifest.info.source << "', " << count_text(manifest.num_parts(), "part")
              << ", " << count_text(manifest.num_ghost_layers, "ghost layer") << ", method " << manifest.info.method
              << '\n'
              << "  whole       " << count_text(manifest.num_cells, "cell") << ", "
              << count_text(manifest.num_points, "point") << '\n';
    for (int d = 0; d < 3; ++d) {
        std::cout << (d == 0 ? "  bounds      " : "              ") << "xyz"[d] << ' '
                  << number_text(manifest.bounds[2 * d]) << " to " << number_text(manifest.bounds[2 * d + 1]) << '\n';
    }
    TextTable arrays("lll");
    for (const ManifestArray& array : manifest.arrays) {
        arrays.add_row(
            {"  " + array.group, array.name, type_text(std::string(to_string(array.type)), array.num_components)});
    }
    std::cout << (manifest.arrays.empty() ? "  arrays      none\n" : "  arrays\n") << arrays << "  parts\n";
    TextTable parts("rrrrrr");
    parts.add_row({"  part", "cells", "ghost cells", "points", "ghost points", "size"});
    for (std::size_t p = 0; p < manifest.parts.size(); ++p) {
        const ManifestPart& part = manifest.parts[p];
        parts.add_row({std::to_string(p), std::to_string(part.num_owned_cells), std::to_string(part.num_ghost_cells),
                       std::to_string(part.num_owned_points), std::to_string(part.num_ghost_points),
                       bytes_text(static_cast<std::uint64_t>(part.num_bytes))});
    }
    std::cout << parts;
}

/// The places along x, y and, of a volume, z: `8 x 24 cells`.
std::string extents_text(const GridBox& box, bool of_cells)
{
    const auto num_directions = box.count[2] > 1 ? 3 : 2;
    return fmt::format("{} {}", fmt::join(box.count.begin(), box.count.begin() + num_directions, " x "),
                       of_cells ? "cells" : "points");
}

/// Lists what is known of a grid before its arrays are read, unless states are to be compared.
void print_grid_info(const std::string& path, bool with_changes, bool as_json)
{
    const auto file = GridFile::open(path);
    const auto& grid = file->grid();
    Json json{{"file", path}, {"origin", grid.origin}, {"spacing", grid.spacing}, {"arrays", Json::array()}};
    TextTable table("llr");
    for (const bool of_cells : {false, true}) {
        const auto box = whole_box(grid, of_cells);
        json[of_cells ? "cells" : "points"] = box.count;
        for (const auto& array : arrays_at(grid, of_cells)) {
            const std::string association = of_cells ? "cell" : "point", type(to_string(array.type()));
            json["arrays"].push_back({{"association", association},
                                      {"name", array.name()},
                                      {"type", type},
                                      {"num_components", array.num_components()}});
            table.add_row(
                {"    " + association, array.name() + " " + type, fmt::format("x{}", array.num_components())});
        }
    }
    json["left_out"] = grid.left_out;
    const auto series = report_series(path, with_changes);
    const auto* time = find_array(grid.field_data, "TimeValue");
    const auto unit = time ? time->unit : "";
    if (series.is_series()) {
        json["series"] = to_json(series);
        json["series"]["unit"] = unit;
    }
    if (as_json) {
        print_json(json);
        return;
    }
    std::cout << path << ": a grid of " << extents_text(whole_box(grid, true), true) << ", "
              << extents_text(whole_box(grid, false), false) << '\n';
    if (series.is_series()) print_times(series, unit);
    std::cout << fmt::format("  origin      {}\n  spacing     {}\n", fmt::join(grid.origin, ", "),
                             fmt::join(grid.spacing, ", "))
              << "  arrays\n"
              << table;
    for (const auto& [name, why] : grid.left_out) std::cout << "  left out    " << name << " " << why << '\n';
    if (series.changes) print(*series.changes, series.states.size());
}

}  // namespace

int info_command(std::span<const std::string> arguments)
{
    std::string file;
    bool json = false, devices = false, changes = false;
    CLI::App app(
        "Lists the contents of a mesh file or a shards folder: cells by type, arrays with range and NaN "
        "count, bounds,\n"
        "closed or open surface, memory; of a series in time also its times; of a grid in .zarr, .h5 or .vtr its "
        "arrays, and why others\n"
        "are none; for a checkpoint the architecture and its parameters. Exit code 3 if it cannot be read.",
        "info");
    add_named(app, "file", file, "FILE",
              "mesh, OpenFOAM case, shards folder or checkpoint; `meshard convert --help` lists the formats");
    app.add_flag("--changes", changes,
                 "of a series in time: read all states and list what changes between them and what is constant");
    app.add_flag("--devices", devices,
                 "in place of a file: the GPUs that programs see, and which libraries and kernels there are for them");
    add_json_option(app, json);
    if (!parse_arguments(app, arguments)) return exit_code::ok;
    if (devices && !file.empty()) throw UsageError("--devices says nothing of {}. Give one of the two.", file);
    if (devices) run_in_sibling_program("info", arguments);
    if (file.empty()) throw UsageError("which file? Give FILE, or --devices.");

    if (is_array_file(file)) {
        print_grid_info(file, changes, json);
        return exit_code::ok;
    }
    const bool is_mesh = std::filesystem::is_directory(file) ? is_foam_case(file) : !is_checkpoint_file(file);
    if (changes && !is_mesh)
        throw UsageError("{} is no series in time, whose states --changes compares. Leave it out.", file);
    if (std::filesystem::is_directory(file) && !is_mesh) {
        const Manifest manifest = read_manifest(file);
        if (json)
            print_json(to_json(file, manifest));
        else
            print(file, manifest);
        return exit_code::ok;
    }
    if (!is_mesh) {
        print_checkpoint_info(file, json);
        return exit_code::ok;
    }
    const Mesh mesh = read_mesh(file);
    for (const std::string& text : describe(find_faults(mesh))) warn("info", file + ": " + text);
    const MeshSummary summary = summarize(mesh);
    const SeriesReport series = report_series(file, changes);
    if (json) {
        Json report = to_json(file, summary);
        if (series.is_series()) report["series"] = to_json(series);
        print_json(report);
        return exit_code::ok;
    }
    print(file, summary, series);
    if (series.changes) print(*series.changes, series.states.size());
    return exit_code::ok;
}

}  // namespace meshard
