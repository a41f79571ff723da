// SPDX-License-Identifier: Apache-2.0
#include "apps/cut_options.h"

#include "apps/command_line.h"
#include "apps/text_table.h"
#include "apps/version.h"
#include "io/partition_dump.h"
#include "io/partition_file.h"
#include "io/render.h"
#include "io/shards_writer.h"
#include "io/subdomain_io.h"
#include "partition/curve_order.h"
#include "partition/geometric_partitioner.h"
#include "partition/ghost_layer.h"
#include "partition/mesh_graph.h"
#include "partition/row_weights.h"
#include "partition/run_on_threads.h"
#include "partition/subdomain.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <mutex>
#include <set>
#include <unistd.h>

namespace meshard {

namespace {

bool is_given_partition(const std::string& method)
{
    return method.starts_with("file:") || method.starts_with("array:");
}

std::vector<std::string> split(const std::string& text)
{
    std::vector<std::string> words;
    for (std::size_t begin = 0; begin <= text.size();) {
        const auto end = std::min(text.find(',', begin), text.size());
        words.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return words;
}

std::vector<std::int32_t> parse_levels(const std::string& text)
{
    std::vector<std::int32_t> levels;
    std::int64_t product = 1;
    for (const auto level : parse_numbers(text, "--levels")) {
        if (!(level >= 1) || level != std::floor(level) || level > 1e6)
            throw UsageError("--levels is '" + text + "'; expected whole numbers from 1, e.g. 4,2.");
        levels.push_back(static_cast<std::int32_t>(level));
        product = std::min<std::int64_t>(product * levels.back(), std::int64_t{1} << 40);
    }
    if (product > std::numeric_limits<std::int32_t>::max())
        throw UsageError("--levels is '" + text + "', which makes too many parts.");
    return levels;
}

double ghost_share(const std::string& objective)
{
    if (objective == "cut") return 0.1;
    if (objective == "ghosts") return 0.6;
    if (objective == "both") return 0.35;
    throw UsageError("--objective is '" + objective + "'; expected cut, ghosts or both.");
}

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
        const DataArray& array = require_array(mesh.is_point_cloud() ? mesh.point_data : mesh.cell_data, name,
                                               "partition", mesh.is_point_cloud() ? "point" : "cell");
        for (std::int64_t i = 0; i < array.num_rows(); ++i) {
            const double value = array.value(i);
            if (!(value >= 0) || value > 1e9 || value != std::floor(value))
                throw InvalidInput(what + " has the value " + number_text(value) + " in row " + std::to_string(i) +
                                   "; expected parts, 0 or above.");
            partition.owners.push_back(static_cast<std::int32_t>(value));
        }
    }
    if (partition.num_rows() != mesh.num_rows())
        throw InvalidInput(what + " has " + std::to_string(partition.num_rows()) + " rows, the mesh has " +
                           count_text(mesh.num_rows(), mesh.is_point_cloud() ? "point" : "cell") + " to cut.");
    const std::int32_t highest = partition.owners.empty() ? -1 : std::ranges::max(partition.owners);
    partition.num_parts = arguments.num_parts > 0 ? arguments.num_parts : std::max(1, highest + 1);
    if (highest >= partition.num_parts)
        throw UsageError(what + " names part " + std::to_string(highest) + "; -n is " +
                         std::to_string(partition.num_parts) + ".");
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

std::vector<std::string> dump_kinds(const CutArguments& arguments)
{
    try {
        return parse_dump_kinds(arguments.dump);
    } catch (const InvalidInput& error) {
        throw UsageError(std::string("--") + error.what());
    }
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

CutResult cut(Mesh& mesh, const Csr& graph, const MeshSource& source, const CutArguments& arguments,
              PartitionReport& report)
{
    std::vector<std::string> names = weight_names(arguments);
    std::vector<std::int32_t> weights;
    if (!source.costs.empty()) {
        names = {"cost"};
        weights = weights_from_costs(source.earlier_owners, source.costs);
    } else if (!names.empty()) {
        weights = row_weights(mesh, graph, names);
    }
    const auto capacities =
        arguments.capacities.empty() ? std::vector<double>{} : parse_numbers(arguments.capacities, "--capacities");
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
        std::vector<float> centers;
        if (method.needs_centers) centers = row_centers(mesh);
        problem.centers = centers;
        MeshSetAside aside(mesh, source);
        result = cut_rows(problem, options);
        aside.bring_back();
        // Parts that are not alike keep their numbers, and so do those of nodes.
        if (capacities.empty() && options.levels.empty()) {
            const auto before = result.partition;
            result.partition = number_parts_along_curve(mesh, std::move(result.partition));
            std::set<std::int32_t> in_pieces;
            for (std::size_t i = 0; i < before.owners.size() && !result.in_pieces.empty(); ++i)
                if (std::ranges::find(result.in_pieces, before.owners[i]) != result.in_pieces.end())
                    in_pieces.insert(result.partition.owners[i]);
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

void warn_of_pieces(const CutResult& result)
{
    if (result.in_pieces.empty()) return;
    std::string parts;
    for (std::size_t i = 0; i < result.in_pieces.size() && i < 10; ++i)
        parts += (i == 0 ? "" : ", ") + std::to_string(result.in_pieces[i]);
    if (result.in_pieces.size() > 10) parts += ", ...";
    warn("partition", count_text(static_cast<std::int64_t>(result.in_pieces.size()), "part") +
                          " could not be made whole within the imbalance, or the mesh is itself in pieces there: " +
                          parts + ".");
}

} // namespace

std::vector<std::string> weight_names(const CutArguments& arguments)
{
    return arguments.weights.empty() || arguments.weights == "cells" ? std::vector<std::string>{} : split(arguments.weights);
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

void add_cut_options(CLI::App& app, CutArguments& arguments)
{
    app.add_option("-n,--num-parts", arguments.num_parts, "number of parts; may be left out with --levels or a given partition")
        ->each([&arguments](const std::string&) { arguments.has_num_parts = true; })
        ->type_name("N");
    app.add_option("-o,--output", arguments.output, "shards folder to make; must not exist")->type_name("DIR");
    app.add_option("--method", arguments.method,
                   "how to cut: metis (k-way), recursive (bisection by METIS), scotch (64-bit), rcb (coordinate\n"
                   "bisection), hilbert (curve), auto (the better of metis and rcb), file:PATH (.part.N or OpenFOAM's\n"
                   "cellDecomposition), array:NAME (of the mesh)")
        ->type_name("NAME")
        ->capture_default_str();
    app.add_option("--levels", arguments.levels, "in levels, e.g. 4,2: in 4 (nodes), then each in 2 (devices)")
        ->type_name("N,N");
    app.add_option("--objective", arguments.objective, "what is to be few: cut (faces between parts), ghosts (of the part with most) or both")
        ->type_name("NAME")
        ->capture_default_str();
    app.add_flag("--quality", arguments.quality, "several times the time for fewer cut faces and ghosts");
    app.add_flag("--refine", arguments.refine, "refine methods that are not refined by default (hilbert, file, array)");
    app.add_flag("--no-refine", arguments.no_refine, "the bare method; parts above the bound are repaired all the same");
    app.add_flag("--contiguous", arguments.contiguous, "parts in one piece, where mesh and balance allow");
    app.add_option("--weights", arguments.weights,
                   "what to balance, several at once with commas: cells (default), points, faces, array:NAME")
        ->type_name("NAME,...");
    app.add_option("--capacities", arguments.capacities, "shares of unequal devices, one a part, e.g. 1,1,2")->type_name("C,...");
    app.add_option("--ghosts", arguments.ghosts,
                   "who is a ghost: neighbours by face, edge, vertex, radius:R (between middles) or nearest:K")
        ->type_name("RULE")
        ->capture_default_str();
    app.add_option("--ghost-layers", arguments.ghost_layers, "rings of foreign cells that each part sees")
        ->type_name("K")
        ->capture_default_str();
    app.add_option("--imbalance", arguments.imbalance, "largest part over mean part that is allowed")
        ->type_name("RATIO")
        ->capture_default_str();
    app.add_option("--seed", arguments.seed, "of the method's random choices; same seed, same parts")
        ->type_name("S")
        ->capture_default_str();
    app.add_option("--threads", arguments.threads, "threads for graph, ghosts and writing; the result is the same for any number")
        ->type_name("T")
        ->capture_default_str();
    app.add_flag("--allow-empty", arguments.allow_empty, "more parts than cells are no error; the rest stay empty");
    app.add_flag("--dry-run", arguments.dry_run, "cut and report, write no shards; -o may be left out");
    app.add_option("--preview", arguments.preview, "draw the parts in colours to this picture")->type_name("PNG");
    app.add_option("--csv", arguments.csv, "write the report of the parts as a table to this file")->type_name("FILE");
    app.add_option("--dump", arguments.dump, "also write the cut for other programs into DIR: metis (graph and part file), foam (decomposePar)")
        ->type_name("LIST");
    add_compress_option(app, arguments.compress);
    app.add_flag("--json", arguments.json, "one JSON object on stdout instead of the report");
}

void check_cut_arguments(CutArguments& arguments)
{
    dump_kinds(arguments);
    parse_compression(arguments.compress);
    if (!arguments.levels.empty()) {
        const auto levels = parse_levels(arguments.levels);
        std::int32_t product = 1;
        for (const auto level : levels) product *= level;
        if (arguments.num_parts != 0 && arguments.num_parts != product)
            throw UsageError("-n is " + std::to_string(arguments.num_parts) + ", but --levels " + arguments.levels +
                             " make " + std::to_string(product) + " parts. Leave -n out.");
        if (is_given_partition(arguments.method)) throw UsageError("--levels needs a method that cuts, not a given partition.");
        arguments.num_parts = product;
    }
    if (!arguments.has_num_parts && arguments.levels.empty() && !is_given_partition(arguments.method))
        throw UsageError("--num-parts is missing: say with -n how many parts to make.");
    if (arguments.num_parts < 1 && !(is_given_partition(arguments.method) && arguments.num_parts == 0))
        throw UsageError("-n is " + std::to_string(arguments.num_parts) + "; the number of parts must be at least 1.");
    if (!is_given_partition(arguments.method)) {
        try {
            partition_method(arguments.method);
        } catch (const InvalidInput& error) {
            throw UsageError(error.what());
        }
    }
    if (arguments.refine && arguments.no_refine) throw UsageError("--refine and --no-refine exclude each other.");
    if (arguments.quality && arguments.no_refine) throw UsageError("--quality and --no-refine exclude each other.");
    ghost_share(arguments.objective);
    if (arguments.threads < 1 || arguments.threads > 1024)
        throw UsageError("--threads is " + std::to_string(arguments.threads) + "; expected 1 to 1024.");
    if (arguments.ghost_layers < 0 || arguments.ghost_layers > 255)
        throw UsageError("--ghost-layers is " + std::to_string(arguments.ghost_layers) + "; expected 0 to 255.");
    if (!(arguments.imbalance >= 1) || !std::isfinite(arguments.imbalance))
        throw UsageError("--imbalance is " + number_text(arguments.imbalance) +
                         "; it is largest over mean part, at least 1, e.g. 1.03.");
    try {
        arguments.ghosts = to_string(parse_ghost_rule(arguments.ghosts));
    } catch (const InvalidInput& error) {
        throw UsageError(std::string("--ghosts: ") + error.what());
    }
    if (!arguments.capacities.empty()) {
        const auto capacities = parse_numbers(arguments.capacities, "--capacities");
        if (arguments.num_parts > 0 && static_cast<std::int32_t>(capacities.size()) != arguments.num_parts)
            throw UsageError("--capacities has " + count_text(static_cast<std::int64_t>(capacities.size()), "number") +
                             " for " + count_text(arguments.num_parts, "part") + ".");
        if (std::ranges::any_of(capacities, [](double c) { return !(c > 0); }))
            throw UsageError("--capacities is '" + arguments.capacities + "'; all must be above 0.");
    }
    for (const auto& weight : arguments.weights.empty() ? std::vector<std::string>{} : split(arguments.weights))
        if (weight != "cells" && weight != "points" && weight != "faces" && !weight.starts_with("array:"))
            throw UsageError("--weights has '" + weight + "'; known are cells, points, faces and array:NAME.");
    if (!arguments.preview.empty() && std::filesystem::path(arguments.preview).extension() != ".png")
        throw UsageError("--preview is '" + arguments.preview + "'; expected a name that ends in .png.");
    if (arguments.output.empty() && !arguments.dry_run)
        throw UsageError("-o is missing: name the shards folder to make, or ask for a --dry-run.");
    if (!arguments.dry_run) check_output_folder(arguments.output);
}

void check_output_folder(const std::string& output_name)
{
    const std::filesystem::path output = output_name;
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

PartitionReport cut_and_save(Mesh& mesh, const MeshSource& source, const CutArguments& given, StageTimer& timer)
{
    CutArguments arguments = given;
    PartitionReport report = report_on(source.name, arguments, mesh.num_cells(), mesh.num_points());
    check_numbers(mesh, source.name);
    if (mesh.num_rows() == 0 && !arguments.allow_empty)
        throw InvalidInput(source.name + " has no cells and no points; there is nothing to cut. Is it the right file?");
    if (arguments.num_parts > mesh.num_rows() && !arguments.allow_empty)
        throw UsageError(source.name + " has " +
                         count_text(mesh.num_rows(), mesh.is_point_cloud() ? "point" : "cell") + ", fewer than the " +
                         std::to_string(arguments.num_parts) +
                         " parts asked for. Ask for fewer, or leave the rest empty with --allow-empty.");

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
    warn_of_pieces(result);

    timer.begin("quality");
    report.quality = measure_quality(partition, graph);

    timer.begin("ghosts");
    std::vector<GhostLayer> ghosts(partition.num_parts);
    if (arguments.ghost_layers > 0) {
        const GhostRule rule = parse_ghost_rule(arguments.ghosts);
        ghosts = rule == GhostRule{} ? ghost_layers(graph, partition, arguments.ghost_layers, arguments.threads)
                                     : ghost_layers(ghost_graph(mesh, rule, partition, arguments.ghost_layers), partition, arguments.ghost_layers, arguments.threads);
    }

    const auto kinds = dump_kinds(arguments);
    if (kinds.empty()) graph = Csr{}; // it is done with, and the parts need room

    timer.begin(arguments.dry_run ? "extract" : "write");
    std::optional<PartialFolder> folder;
    if (!arguments.dry_run) folder.emplace(arguments.output);
    const auto shards = save_parts(mesh, partition, ghosts, arguments, folder, report, timer);
    if (folder) {
        report.output = arguments.output;
        report.index_file = index_name(mesh.kind);
        ShardsInfo info;
        info.source = source.path;
        info.source_hash = source.hash;
        info.method = result.method;
        info.seed = arguments.seed;
        info.options = {{"num_parts", std::to_string(partition.num_parts)},
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

} // namespace meshard
