// SPDX-License-Identifier: Apache-2.0
// meshard partition: a mesh file -> a shards folder, with a report.
#include "apps/command_line.h"
#include "apps/json_report.h"
#include "apps/stage_timer.h"
#include "apps/text_table.h"
#include "apps/verbs.h"
#include "apps/version.h"
#include "io/interruption.h"
#include "io/mesh_faults.h"
#include "io/mesh_io.h"
#include "io/partition_dump.h"
#include "io/subdomain_io.h"
#include "partition/ghost_layer.h"
#include "partition/curve_order.h"
#include "partition/mesh_graph.h"
#include "partition/metis_partitioner.h"
#include "partition/nearest_name.h"
#include "partition/subdomain.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <unistd.h>

namespace meshard {

namespace {

struct PartitionOptions {
    std::string file;
    std::string output;
    std::int32_t num_parts = 0;
    std::string method = "metis";
    std::int32_t ghost_layers = 1;
    double imbalance = 1.03;
    std::int32_t seed = 0;
    std::string dump;
    bool allow_empty = false;
    bool json = false;
};

struct RowCounts {
    std::int64_t owned = 0;
    std::int64_t ghosts = 0;
};

/// What the report says of a finished run.
struct PartitionReport {
    PartitionOptions options;
    std::int64_t num_cells = 0;
    std::int64_t num_points = 0;
    PartitionQuality quality;
    std::vector<RowCounts> cells;  ///< of each part
    std::vector<RowCounts> points;
    std::string index_file;  ///< what ParaView opens
    std::vector<std::pair<std::string, double>> seconds;
    std::uint64_t peak_bytes = 0;

    bool is_cloud() const { return num_cells == 0; }
};

bool parse(std::span<const std::string> arguments, PartitionOptions& options)
{
    CLI::App app(
        "Cuts a mesh into shards of nearly the same number of cells (a point cloud: of points) with few faces\n"
        "between them, and writes them as a folder of VTK files that ParaView opens.",
        "partition");
    app.add_option("file", options.file, "mesh or OpenFOAM case to cut (meshard convert --help lists the formats)")
        ->required()
        ->type_name("FILE");
    app.add_option("-n,--num-parts", options.num_parts, "number of parts")->required()->type_name("N");
    app.add_option("-o,--output", options.output, "shards folder to make; must not exist")
        ->required()
        ->type_name("DIR");
    app.add_option("--method", options.method, "how to cut: metis (k-way, fewest faces between parts)")
        ->type_name("NAME")
        ->capture_default_str();
    app.add_option("--ghost-layers", options.ghost_layers, "rings of foreign cells that each part sees")
        ->type_name("K")
        ->capture_default_str();
    app.add_option("--imbalance", options.imbalance, "largest part over mean part that is allowed")
        ->type_name("RATIO")
        ->capture_default_str();
    app.add_option("--seed", options.seed, "of the method's random choices; same seed, same parts")
        ->type_name("S")
        ->capture_default_str();
    app.add_option("--dump", options.dump, "also write the cut for other programs into DIR: metis (graph and part file), foam (decomposePar)")
        ->type_name("LIST");
    app.add_flag("--allow-empty", options.allow_empty, "more parts than cells are no error; the rest stay empty");
    app.add_flag("--json", options.json, "one JSON object on stdout instead of the report");
    return parse_arguments(app, arguments);
}

void check(const PartitionOptions& options)
{
    if (options.num_parts < 1) {
        throw UsageError("-n is " + std::to_string(options.num_parts) + "; the number of parts must be at least 1.");
    }
    const std::vector<std::string> methods{"metis"};
    if (std::ranges::find(methods, options.method) == methods.end()) {
        const std::string nearest = nearest_name(options.method, methods);
        throw UsageError("unknown method '" + options.method + "'; known is metis." +
                         (nearest.empty() ? "" : " Did you mean '" + nearest + "'?"));
    }
    if (options.ghost_layers < 0 || options.ghost_layers > 255) {
        throw UsageError("--ghost-layers is " + std::to_string(options.ghost_layers) + "; expected 0 to 255.");
    }
    if (!(options.imbalance >= 1) || !std::isfinite(options.imbalance)) {
        throw UsageError("--imbalance is " + number_text(options.imbalance) +
                         "; it is largest over mean part, at least 1, e.g. 1.03.");
    }
}

std::vector<std::string> dump_kinds(const PartitionOptions& options)
{
    try {
        return parse_dump_kinds(options.dump);
    } catch (const InvalidInput& error) {
        throw UsageError(std::string("--") + error.what());
    }
}

/// Finds out before any work what would stop the last step.
void check_output(const std::filesystem::path& output)
{
    if (std::filesystem::exists(std::filesystem::symlink_status(output))) {
        throw IoError("the output '" + output.string() + "' exists. Remove it, or name another folder with -o.");
    }
    std::filesystem::path folder = std::filesystem::absolute(output).lexically_normal();
    if (folder.filename().empty()) folder = folder.parent_path();
    do {
        folder = folder.parent_path();
    } while (!std::filesystem::exists(folder) && folder.has_relative_path());
    if (!std::filesystem::is_directory(folder)) {
        throw IoError("the output '" + output.string() + "' cannot be made: '" + folder.string() + "' is no folder.");
    }
    if (access(folder.c_str(), W_OK | X_OK) != 0) {
        throw IoError("the output '" + output.string() + "' cannot be made: no permission to write in '" +
                      folder.string() + "'.");
    }
}

std::int64_t count_if_floating(const DataArray& array, auto&& is_bad)
{
    if (array.type() != ScalarType::Float32 && array.type() != ScalarType::Float64) return 0;
    return with_scalar_type(array.type(), [&]<class T>() -> std::int64_t {
        if constexpr (std::is_floating_point_v<T>)
            return std::ranges::count_if(array.values<T>(), is_bad);
        else
            return 0;
    });
}

void check_numbers(const Mesh& mesh, const std::string& file)
{
    const std::int64_t bad = count_if_floating(mesh.points, [](auto x) { return !std::isfinite(x); });
    if (bad > 0) {
        throw InvalidInput(file + " has " + count_text(bad, "coordinate") + " that " + (bad == 1 ? "is" : "are") +
                           " NaN or infinite; every point needs a place. Repair the mesh.");
    }
    const auto warn_of = [&](const std::vector<DataArray>& arrays, const std::string& group) {
        for (const DataArray& array : arrays) {
            const std::int64_t num_nan = count_if_floating(array, [](auto x) { return std::isnan(x); });
            if (num_nan == 0) continue;
            warn("partition", "the " + group + " array '" + array.name() + "' has " + std::to_string(num_nan) +
                                  " NaN; the shards keep them as they are.");
        }
    };
    warn_of(mesh.point_data, "point");
    warn_of(mesh.cell_data, "cell");
}

PartitionReport run(const PartitionOptions& options)
{
    PartitionReport report;
    report.options = options;
    StageTimer timer;

    timer.begin("read");
    const Mesh mesh = read_mesh(options.file);
    report.num_cells = mesh.num_cells();
    report.num_points = mesh.num_points();
    check_numbers(mesh, options.file);
    for (const std::string& text : describe(find_faults(mesh))) warn("partition", options.file + ": " + text);
    if (mesh.num_rows() == 0 && !options.allow_empty)
        throw InvalidInput(options.file + " has no cells and no points; there is nothing to cut. Is it the right file?");
    if (options.num_parts > mesh.num_rows() && !options.allow_empty) {
        throw UsageError(options.file + " has " +
                         count_text(mesh.num_rows(), mesh.is_point_cloud() ? "point" : "cell") + ", fewer than the " +
                         std::to_string(options.num_parts) +
                         " parts asked for. Ask for fewer, or leave the rest empty with --allow-empty.");
    }

    timer.begin("graph");
    const Csr graph = mesh_graph(mesh);

    timer.begin("partition");
    const MetisOptions metis{.num_parts = options.num_parts, .imbalance = options.imbalance, .seed = options.seed};
    const Partition partition = number_parts_along_curve(mesh, partition_with_metis(graph, metis));

    timer.begin("quality");
    report.quality = measure_quality(partition, graph);

    timer.begin("ghosts");
    const auto ghosts = options.ghost_layers > 0 ? ghost_layers(graph, partition, options.ghost_layers)
                                                 : std::vector<GhostLayer>(options.num_parts);

    timer.begin("extract");
    const std::vector<Subdomain> subdomains = extract_subdomains(mesh, partition, ghosts, options.ghost_layers);

    timer.begin("write");
    ShardsInfo info;
    info.source = options.file;
    info.method = options.method;
    info.seed = options.seed;
    info.options = {{"num_parts", std::to_string(options.num_parts)},
                    {"ghost_layers", std::to_string(options.ghost_layers)},
                    {"imbalance", number_text(options.imbalance)}};
    info.versions = library_versions();
    info.versions.insert(info.versions.begin(), {"meshard", program_version()});
    info.quality = report.quality;
    save_subdomains(options.output, subdomains, std::move(info));
    dump_partition(options.output, dump_kinds(options), graph, partition.owners, options.num_parts);

    for (const Subdomain& subdomain : subdomains) {
        report.cells.push_back({subdomain.cells.num_owned, subdomain.cells.num_ghosts()});
        report.points.push_back({subdomain.points.num_owned, subdomain.points.num_ghosts()});
    }
    report.index_file = mesh.kind == MeshKind::Surface ? "mesh.pvtp" : "mesh.pvtu";
    report.seconds = timer.finish();
    report.peak_bytes = peak_memory_bytes();
    return report;
}

void print_as_json(const PartitionReport& report)
{
    Json parts = Json::array();
    for (std::size_t p = 0; p < report.quality.parts.size(); ++p) {
        const PartQuality& part = report.quality.parts[p];
        parts.push_back({{"part", p},
                         {"cells", report.cells[p].owned},
                         {"points", report.points[p].owned},
                         {"ghost_cells", report.cells[p].ghosts},
                         {"ghost_points", report.points[p].ghosts},
                         {"neighbors", part.neighbors},
                         {"shared_faces", part.neighbor_edges},
                         {"components", part.num_components}});
    }
    Json seconds;
    for (const auto& [stage, duration] : report.seconds) seconds[stage] = duration;
    print_json({{"source", report.options.file},
                {"output", report.options.output},
                {"method", report.options.method},
                {"seed", report.options.seed},
                {"num_parts", report.options.num_parts},
                {"ghost_layers", report.options.ghost_layers},
                {"num_cells", report.num_cells},
                {"num_points", report.num_points},
                {"edge_cut", report.quality.edge_cut},
                {"communication_volume", report.quality.communication_volume},
                {"imbalance", report.quality.imbalance},
                {"imbalance_allowed", report.options.imbalance},
                {"parts", std::move(parts)},
                {"seconds", std::move(seconds)},
                {"peak_rss_bytes", report.peak_bytes}});
}

/// `Max number of cells = 100 (0% above average 100)`, as decomposePar says it.
template <class F>
void print_maximum(const std::string& what, std::size_t num_parts, F&& value_of)
{
    double largest = 0;
    double sum = 0;
    for (std::size_t p = 0; p < num_parts; ++p) {
        const auto value = static_cast<double>(value_of(p));
        largest = std::max(largest, value);
        sum += value;
    }
    const double average = sum / static_cast<double>(num_parts);
    std::cout << "  Max number of " << what << " = " << number_text(largest);
    if (average > 0)
        std::cout << " (" << number_text(std::round(1000 * (largest / average - 1)) / 10) << "% above average "
                  << number_text(average) << ")";
    std::cout << '\n';
}

void print_as_text(const PartitionReport& report)
{
    const auto& parts = report.quality.parts;
    const bool cloud = report.is_cloud();
    const std::vector<RowCounts>& rows = cloud ? report.points : report.cells;
    const std::string row = cloud ? "point" : "cell";
    const std::string facet = cloud ? "edges" : "shared faces";

    std::cout << report.options.file << ": ";
    if (!cloud) std::cout << count_text(report.num_cells, "cell") << ", ";
    std::cout << count_text(report.num_points, "point") << " in " << count_text(report.options.num_parts, "part")
              << " by " << report.options.method << " with " << count_text(report.options.ghost_layers, "ghost layer")
              << "\n\n";

    TextTable table(cloud ? "rrrrl" : "rrrrrl");
    if (cloud)
        table.add_row({"part", "points", "ghost points", "pieces", "neighbours (" + facet + ")"});
    else
        table.add_row({"part", "cells", "points", "ghost cells", "pieces", "neighbours (" + facet + ")"});
    for (std::size_t p = 0; p < parts.size(); ++p) {
        std::string neighbors;
        for (std::size_t k = 0; k < parts[p].neighbors.size(); ++k) {
            neighbors += (k == 0 ? "" : ", ") + std::to_string(parts[p].neighbors[k]) + " (" +
                         std::to_string(parts[p].neighbor_edges[k]) + ")";
        }
        std::vector<std::string> cells{std::to_string(p), std::to_string(rows[p].owned)};
        if (!cloud) cells.push_back(std::to_string(report.points[p].owned));
        for (const std::int64_t count : {rows[p].ghosts, parts[p].num_components})
            cells.push_back(std::to_string(count));
        cells.push_back(neighbors);
        table.add_row(std::move(cells));
    }
    std::cout << table << "\n  Edge cut: " << report.quality.edge_cut << " " << facet
              << ", communication volume: " << report.quality.communication_volume
              << ", imbalance: " << fixed_text(report.quality.imbalance, 4) << " (allowed "
              << number_text(report.options.imbalance) << ")\n";
    print_maximum(row + "s", parts.size(), [&](std::size_t p) { return rows[p].owned; });
    print_maximum("ghost " + row + "s", parts.size(), [&](std::size_t p) { return rows[p].ghosts; });
    print_maximum("neighbours", parts.size(), [&](std::size_t p) { return parts[p].neighbors.size(); });
    print_maximum((cloud ? "edges" : "faces") + std::string(" to other parts"), parts.size(),
                  [&](std::size_t p) { return parts[p].cut_edges; });

    std::cout << "\n  Seconds:";
    for (std::size_t i = 0; i < report.seconds.size(); ++i) {
        std::cout << (i == 0 ? " " : ", ") << report.seconds[i].first << ' ' << fixed_text(report.seconds[i].second, 3);
    }
    std::cout << "\n  Peak memory: " << bytes_text(report.peak_bytes) << "\n\nWritten to " << report.options.output
              << "; open its " << report.index_file << " in ParaView.\n";
}

}  // namespace

int partition_command(std::span<const std::string> arguments)
{
    PartitionOptions options;
    if (!parse(arguments, options)) return exit_code::ok;
    check(options);
    dump_kinds(options);
    check_output(options.output);
    end_well_on_interruption();
    const PartitionReport report = run(options);
    if (options.json)
        print_as_json(report);
    else
        print_as_text(report);
    return exit_code::ok;
}

}  // namespace meshard
