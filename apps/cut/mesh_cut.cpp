// SPDX-License-Identifier: Apache-2.0
#include "apps/cut/mesh_cut.h"

#include "apps/program/command_line.h"
#include "apps/program/text_table.h"
#include "apps/program/version.h"
#include "io/picture/render.h"
#include "io/shards/partition_dump.h"
#include "io/shards/partition_file.h"
#include "io/shards/shards_writer.h"
#include "io/shards/subdomain_io.h"
#include "partition/cut/curve_order.h"
#include "partition/cut/geometric_partitioner.h"
#include "partition/cut/partitioner.h"
#include "partition/cut/row_weights.h"
#include "partition/ghosts/ghost_graph.h"
#include "partition/ghosts/ghost_layer.h"
#include "partition/ghosts/subdomain.h"
#include "partition/mesh/mesh_graph.h"
#include "partition/run_on_threads.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>
#include <set>

namespace meshard {

namespace {

/// The partition that a file or an array of the mesh holds.
Partition given_partition(const Mesh& mesh, const CutArguments& arguments)
{
    Partition partition;
    const bool is_file = arguments.method.starts_with("file:");
    const std::string name = arguments.method.substr(arguments.method.find(':') + 1);
    const std::string what = (is_file ? "the partition file '" : "the array '") + name + "'";
    if (is_file) {
        partition.owners = read_partition_file(name);
    } else {
        const DataArray& array =
            require_array(mesh.is_point_cloud() ? mesh.point_data : mesh.cell_data, name, "partition", mesh.is_point_cloud() ? "point" : "cell");
        for (std::int64_t i = 0; i < array.num_rows(); ++i) partition.owners.push_back(given_part(array, i));
    }
    if (partition.num_rows() != mesh.num_rows())
        throw InvalidInput(what + " has " + std::to_string(partition.num_rows()) + " rows, the mesh has " +
                           count_text(mesh.num_rows(), mesh.is_point_cloud() ? "point" : "cell") + " to cut.");
    const std::int32_t highest = partition.owners.empty() ? -1 : std::ranges::max(partition.owners);
    partition.num_parts = arguments.num_parts > 0 ? arguments.num_parts : std::max(1, highest + 1);
    if (highest >= partition.num_parts)
        throw UsageError(what + " names part " + std::to_string(highest) + "; -n is " + std::to_string(partition.num_parts) + ".");
    return partition;
}

std::int64_t count_if_floating(const DataArray& array, std::int64_t begin, std::int64_t end, auto&& is_bad)
{
    if (array.type() != ScalarType::Float32 && array.type() != ScalarType::Float64) return 0;
    return with_scalar_type(array.type(), [&]<class T>() -> std::int64_t {
        if constexpr (std::is_floating_point_v<T>)
            return std::ranges::count_if(array.values<T>().subspan(begin * array.num_components(), (end - begin) * array.num_components()), is_bad);
        else
            return 0;
    });
}

void check_numbers(const Mesh& mesh, const std::string& file)
{
    const std::int64_t bad = count_if_floating(mesh.points, 0, mesh.points.num_rows(), [](auto x) { return !std::isfinite(x); });
    if (bad > 0) {
        throw InvalidInput(file + " has " + count_text(bad, "coordinate") + " that " + (bad == 1 ? "is" : "are") +
                           " NaN or infinite; every point needs a place. Repair the mesh.");
    }
    const auto warn_of = [&](const std::vector<DataArray>& arrays, const std::string& group) {
        for (const DataArray& array : arrays) {
            const std::int64_t num_nan = count_nan(array, 0, array.num_rows());
            if (num_nan > 0) warn("partition", nan_text(array, group, num_nan));
        }
    };
    warn_of(mesh.point_data, "point");
    warn_of(mesh.cell_data, "cell");
}

// The cells of a large mesh weigh as much as its graph, and METIS needs several times that: where they can be read again
// in no time, they make room, and so do the pages of the file.
class MeshSetAside {
public:
    MeshSetAside(Mesh& mesh, const MeshSource& source) : mesh_(mesh), source_(source)
    {
        constexpr std::int64_t many = 4'000'000;
        is_aside_ = source.read_again && mesh.num_cells() >= many;
        if (is_aside_) mesh_ = Mesh{};
    }

    void bring_back()
    {
        if (is_aside_) mesh_ = source_.read_again();
        is_aside_ = false;
    }

private:
    Mesh& mesh_;
    const MeshSource& source_;
    bool is_aside_ = false;
};

CutResult cut(Mesh& mesh, const Csr& graph, const MeshSource& source, const CutArguments& arguments, PartitionReport& report)
{
    std::vector<std::string> names = weight_names(arguments);
    std::vector<std::int32_t> weights;
    if (!source.costs.empty()) {
        names = {"cost"};
        weights = weights_from_costs(source.earlier_owners, source.costs);
    } else if (!names.empty()) {
        weights = row_weights(mesh, graph, names);
    }
    const auto capacities = arguments.capacities.empty() ? std::vector<double>{} : parse_numbers(arguments.capacities, "--capacities");
    PartitionProblem problem{.graph = &graph,
                             .num_parts = arguments.num_parts,
                             .balance = {.imbalance = arguments.imbalance,
                                         .num_weights = std::max(1, static_cast<std::int32_t>(names.size())),
                                         .row_weights = weights,
                                         .capacities = capacities},
                             .seed = static_cast<std::uint64_t>(arguments.seed)};
    CutOptions options{.method = arguments.method,
                       .levels = arguments.levels.empty() ? std::vector<std::int32_t>{} : parse_levels(arguments.levels),
                       .effort = arguments.quality ? RefinementEffort::Thorough : RefinementEffort::Fast,
                       .ghost_share = ghost_share(arguments.objective),
                       .contiguous = arguments.contiguous};
    CutResult result;
    if (is_given_partition(arguments.method)) {
        result = {given_partition(mesh, arguments), arguments.method, {}};
        problem.num_parts = result.partition.num_parts;
        // What somebody else decided stays, unless asked otherwise.
        options.refine = arguments.refine || arguments.quality;
        if (options.refine || options.contiguous) result = improve_cut(std::move(result.partition), problem, options);
    } else {
        const PartitionMethod& method = partition_method(arguments.method);
        options.refine = !arguments.no_refine && (method.refine || arguments.refine || arguments.quality);
        std::vector<float> centroids;
        if (method.needs_centroids) centroids = row_centroids(mesh);
        problem.centroids = centroids;
        MeshSetAside aside(mesh, source);
        result = cut_rows(problem, options);
        aside.bring_back();
        // Parts that are not alike keep their numbers, and so do those of nodes.
        if (capacities.empty() && options.levels.empty()) {
            const auto before = result.partition;
            result.partition = number_parts_along_curve(mesh, std::move(result.partition));
            std::set<std::int32_t> in_pieces;
            for (std::size_t i = 0; i < before.owners.size() && !result.in_pieces.empty(); ++i)
                if (std::ranges::find(result.in_pieces, before.owners[i]) != result.in_pieces.end()) in_pieces.insert(result.partition.owners[i]);
            result.in_pieces.assign(in_pieces.begin(), in_pieces.end());
        }
    }
    const auto found = imbalances(result.partition, problem.balance);
    if (names.empty()) names = {mesh.is_point_cloud() ? "points" : "cells"};
    for (std::size_t w = 0; w < found.size(); ++w) report.imbalances.emplace_back(names[w], found[w]);
    return result;
}

// Bytes of the fields at one row.
std::int64_t bytes_per_row(const std::vector<DataArray>& arrays)
{
    std::int64_t bytes = 0;
    for (const DataArray& array : arrays) bytes += array.num_components() * static_cast<std::int64_t>(size_of(array.type()));
    return bytes;
}

// Cuts out one part after the other and writes it, on as many threads as asked for: what each holds at a time is a part.
std::vector<WrittenShard> save_parts(const Mesh& mesh, const Partition& partition, std::span<const GhostLayer> ghosts, const CutArguments& arguments,
                                     const std::optional<PartialFolder>& folder, PartitionReport& report, StageTimer& timer)
{
    const SubdomainCutter cutter(mesh, partition, arguments.ghost_layers);
    const auto cell_bytes = bytes_per_row(mesh.cell_data), point_bytes = bytes_per_row(mesh.point_data);
    const auto num_parts = static_cast<std::size_t>(partition.num_parts);
    const Compression compression = parse_compression(arguments.compress);
    std::mutex one_at_a_time;
    std::size_t num_done = 0;
    std::vector<WrittenShard> shards(num_parts);
    report.cells.resize(num_parts);
    report.points.resize(num_parts);
    report.ghost_bytes.resize(num_parts);
    run_on_threads(arguments.threads, [&](const std::function<std::int64_t()>& next) {
        std::vector<std::int32_t> place;
        for (auto part = next(); part < partition.num_parts; part = next()) {
            const auto subdomain = cutter.cut(static_cast<std::int32_t>(part), ghosts[part], place);
            report.cells[part] = {subdomain.cells.num_owned, subdomain.cells.num_ghosts()};
            report.points[part] = {subdomain.points.num_owned, subdomain.points.num_ghosts()};
            report.ghost_bytes[part] = cell_bytes * subdomain.cells.num_ghosts() + point_bytes * subdomain.points.num_ghosts();
            if (folder) shards[part] = write_shard(folder->path(), subdomain, compression);
            const std::lock_guard lock(one_at_a_time);
            timer.advance(static_cast<double>(++num_done) / static_cast<double>(num_parts));
        }
    });
    for (const auto& shard : shards)
        if (folder) report.bytes.push_back(shard.part.num_bytes);
    return shards;
}

void draw_preview(const Mesh& mesh, const Partition& partition, const std::string& file)
{
    Mesh painted = mesh;
    auto& arrays = painted.is_point_cloud() ? painted.point_data : painted.cell_data;
    std::erase_if(arrays, [](const DataArray& array) { return array.name() == "PartitionId"; });
    arrays.push_back(DataArray::from("PartitionId", partition.owners));
    RenderOptions options;
    options.color_by = "PartitionId";
    render_mesh(painted, file, options);
}

}  // namespace

void warn_of_pieces(std::span<const std::int32_t> in_pieces)
{
    if (in_pieces.empty()) return;
    std::string parts;
    for (std::size_t i = 0; i < in_pieces.size() && i < 10; ++i) parts += (i == 0 ? "" : ", ") + std::to_string(in_pieces[i]);
    if (in_pieces.size() > 10) parts += ", ...";
    warn("partition", count_text(static_cast<std::int64_t>(in_pieces.size()), "part") +
                          " could not be made whole within the imbalance, or the mesh is itself in pieces there: " + parts + ".");
}

std::int32_t given_part(const DataArray& array, std::int64_t row)
{
    const double value = array.value(row);
    if (!(value >= 0) || value > 1e9 || value != std::floor(value))
        throw InvalidInput("the array '" + array.name() + "' has the value " + number_text(value) + " in row " + std::to_string(row) +
                           "; expected parts, 0 or above.");
    return static_cast<std::int32_t>(value);
}

std::int64_t count_nan(const DataArray& array, std::int64_t begin, std::int64_t end)
{
    return count_if_floating(array, begin, end, [](auto x) { return std::isnan(x); });
}

std::string nan_text(const DataArray& array, const std::string& group, std::int64_t num_nan)
{
    return "the " + group + " array '" + array.name() + "' has " + std::to_string(num_nan) + " NaN; the shards keep them as they are.";
}

std::string crowded_text(std::int64_t cell)
{
    return "cell " + std::to_string(cell) +
           " has a face (of a surface: an edge) that belongs to three cells or more, so that the mesh is no manifold; these cells are all neighbours.";
}

StageTimer cut_timer()
{
    // Of a million tetrahedra in 8 parts.
    return StageTimer({{"read", 0.06}, {"graph", 0.16}, {"partition", 0.4}, {"quality", 0.03}, {"ghosts", 0.03}, {"extract", 0.32}, {"write", 0.32}});
}

PartitionReport report_on(const std::string& source, const CutArguments& arguments, std::int64_t num_cells, std::int64_t num_points)
{
    PartitionReport report;
    report.source = source;
    report.ghost_layers = arguments.ghost_layers;
    report.ghost_neighbors = arguments.ghosts;
    report.seed = arguments.seed;
    report.imbalance_allowed = arguments.imbalance;
    report.num_cells = num_cells;
    report.num_points = num_points;
    return report;
}

ShardsInfo shards_info(const PartitionReport& report, const CutArguments& arguments)
{
    ShardsInfo info;
    info.method = report.method;
    info.seed = arguments.seed;
    info.options = {{"num_parts", std::to_string(report.num_parts)},
                    {"ghost_layers", std::to_string(arguments.ghost_layers)},
                    {"ghost_neighbors", arguments.ghosts},
                    {"imbalance", number_text(arguments.imbalance)},
                    {"objective", arguments.objective}};
    if (!arguments.levels.empty()) info.options.emplace_back("levels", arguments.levels);
    if (!arguments.weights.empty()) info.options.emplace_back("weights", arguments.weights);
    if (!arguments.capacities.empty()) info.options.emplace_back("capacities", arguments.capacities);
    info.versions = library_versions();
    info.versions.insert(info.versions.begin(), {"meshard", program_version()});
    info.quality = report.quality;
    return info;
}

PartitionReport cut_and_save(Mesh& mesh, const MeshSource& source, const CutArguments& given, StageTimer& timer)
{
    CutArguments arguments = given;
    PartitionReport report = report_on(source.name, arguments, mesh.num_cells(), mesh.num_points());
    check_numbers(mesh, source.name);
    if (mesh.num_rows() == 0 && !arguments.allow_empty)
        throw InvalidInput(source.name + " has no cells and no points; there is nothing to cut. Is it the right file?");
    if (arguments.num_parts > mesh.num_rows() && !arguments.allow_empty)
        throw UsageError(source.name + " has " + count_text(mesh.num_rows(), mesh.is_point_cloud() ? "point" : "cell") + ", fewer than the " +
                         std::to_string(arguments.num_parts) + " parts asked for. Ask for fewer, or leave the rest empty with --allow-empty.");

    timer.begin("graph");
    std::int32_t crowded = -1;
    Csr graph = mesh_graph(mesh, arguments.threads, &crowded);
    if (crowded >= 0) warn("partition", source.name + ": " + crowded_text(crowded));

    timer.begin("partition");
    const CutResult result = cut(mesh, graph, source, arguments, report);
    const Partition& partition = result.partition;
    report.method = result.method;
    report.num_parts = partition.num_parts;
    report.in_pieces = result.in_pieces;
    warn_of_pieces(result.in_pieces);

    timer.begin("quality");
    report.quality = measure_quality(partition, graph);

    timer.begin("ghosts");
    std::vector<GhostLayer> ghosts(partition.num_parts);
    if (arguments.ghost_layers > 0) {
        const GhostRule rule = parse_ghost_rule(arguments.ghosts);
        ghosts = rule == GhostRule{}
                     ? ghost_layers(graph, partition, arguments.ghost_layers, arguments.threads)
                     : ghost_layers(ghost_graph(mesh, rule, partition, arguments.ghost_layers), partition, arguments.ghost_layers, arguments.threads);
    }

    const auto kinds = dump_kinds(arguments);
    if (kinds.empty()) graph = Csr{};  // it is done with, and the parts need room

    timer.begin(arguments.dry_run ? "extract" : "write");
    std::optional<PartialFolder> folder;
    if (!arguments.dry_run) folder.emplace(arguments.output);
    const auto shards = save_parts(mesh, partition, ghosts, arguments, folder, report, timer);
    if (folder) {
        report.output = arguments.output;
        report.index_file = index_name(mesh.kind);
        auto info = shards_info(report, arguments);
        info.source = source.path;
        info.source_hash = source.hash;
        finish_shards(folder->path(), without_rows(mesh, partition.num_parts, arguments.ghost_layers), shards, std::move(info));
        dump_partition(folder->path(), kinds, graph, partition.owners, partition.num_parts);
        folder->commit();
    }
    if (!arguments.preview.empty()) {
        timer.begin("preview");
        draw_preview(mesh, partition, arguments.preview);
    }
    report.seconds = timer.finish();
    report.stage_peaks = timer.peaks();
    report.peak_bytes = peak_memory_bytes();
    return report;
}

void print_report(const PartitionReport& report, const CutArguments& arguments)
{
    if (!arguments.csv.empty()) write_as_csv(report, arguments.csv);
    if (arguments.json)
        print_as_json(report);
    else
        print_as_text(report);
}

}  // namespace meshard
