// SPDX-License-Identifier: Apache-2.0
#include "apps/cut/mesh_cut.h"

#include "apps/console/part_files.h"
#include "apps/console/text_table.h"
#include "apps/cut/shard_sink.h"
#include "apps/program/command_line.h"
#include "apps/program/version.h"
#include "io/bytes/made_folders.h"
#include "io/shards/partition_file.h"
#include "io/shards/shards_writer.h"
#include "io/shards/subdomain_io.h"
#include "partition/cut/balance_target.h"
#include "partition/error.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

namespace meshard {

namespace {

std::int64_t count_nan(const DataArray& array, std::int64_t begin, std::int64_t end)
{
    if (array.type() != ScalarType::Float32 && array.type() != ScalarType::Float64) return 0;
    return with_scalar_type(array.type(), [&]<class T>() -> std::int64_t {
        if constexpr (std::is_floating_point_v<T>)
            return std::ranges::count_if(
                array.values<T>().subspan(begin * array.num_components(), (end - begin) * array.num_components()),
                [](T x) { return std::isnan(x); });
        else
            return 0;
    });
}

void warn_of_pieces(std::span<const std::int32_t> in_pieces)
{
    if (in_pieces.empty()) return;
    const auto shown = in_pieces.first(std::min<std::size_t>(in_pieces.size(), 10));
    warn("partition",
         fmt::format(
             "{} could not be made connected within the imbalance, or the mesh itself is not connected there: {}{}.",
             count_text(std::ssize(in_pieces), "part"), fmt::join(shown, ", "),
             shown.size() < in_pieces.size() ? ", ..." : ""));
}

void warn_of_crowds(const std::string& name, const FacetCrowds& crowds)
{
    if (crowds.first_cell >= 0)
        warn("partition",
             "{}: cell {} has a face (on a surface: an edge) that belongs to three cells or "
             "more, so the mesh is not a manifold; "
             "these cells all count as neighbours.",
             name, crowds.first_cell);
    if (crowds.most_cells > most_mutual_cells)
        warn("partition",
             "{}: {} cells share one face (on a surface: an edge; of lines: a point). Of more "
             "than {} the first ones count as neighbours of one "
             "another, and each further one as a neighbour of the one before it; ghosts by "
             "face are found so. --ghosts vertex takes all of them.",
             name, crowds.most_cells, most_mutual_cells);
}

void warn_of_imbalance(const PartitionReport& report)
{
    if (!report.is_above_bound) return;
    std::string found;
    for (const auto& [weight, imbalance] : report.imbalances)
        found += fmt::format("{}{} {:.4g}", found.empty() ? "" : ", ", weight, imbalance);
    warn("partition",
         "parts are above the allowed imbalance of {}, or empty: {}. Ask for fewer parts, or "
         "allow more with --imbalance.",
         number_text(report.imbalance_allowed), found);
}

void require_rows(const CutSteps& steps, std::int64_t num_rows, const std::string& name, const CutArguments& arguments)
{
    if (num_rows == 0 && !arguments.allow_empty)
        throw InvalidInput("{} has no cells and no points; there is nothing to cut. Is it the right file?", name);
    if (arguments.num_parts > num_rows && !arguments.allow_empty)
        throw UsageError(
            "{} has {}, fewer than the {} parts asked for. Ask for fewer, or allow empty parts with --allow-empty.",
            name, count_text(num_rows, steps.num_cells() == 0 ? "point" : "cell"), arguments.num_parts);
}

std::int32_t given_part(const DataArray& array, std::int64_t row)
{
    const double value = array.value(row);
    if (!(value >= 0) || value > 1e9 || value != std::floor(value))
        throw InvalidInput("the array '{}' has the value {} in row {}; expected parts, 0 to 1000000000.", array.name(),
                           number_text(value), row);
    return static_cast<std::int32_t>(value);
}

// Returns the owners of this rank's share of the rows and sets the number of parts, if the method is a file or an array
// of the mesh.
std::optional<std::vector<std::int32_t>> given_partition(const CutSteps& steps, std::int64_t num_rows,
                                                         CutArguments& arguments, RankMessages& messages)
{
    if (!is_given_partition(arguments.method)) return std::nullopt;
    const bool is_file = arguments.method.starts_with("file:"), is_cloud = steps.num_cells() == 0;
    const std::string name = arguments.method.substr(arguments.method.find(':') + 1);
    const std::string what = fmt::format("the {} '{}'", is_file ? "partition file" : "array", name);
    const auto rows = RankRanges::even(num_rows, messages.size());
    const auto begin = rows.begin(messages.rank()), end = rows.begin(messages.rank() + 1);
    std::vector<std::int32_t> owners;
    owners.reserve(end - begin);
    std::int64_t num_given = 0;
    if (is_file) {
        read_partition_file(name, [&](std::int32_t owner) {
            if (num_given >= begin && num_given < end) owners.push_back(owner);
            ++num_given;
        });
    } else {
        const auto& array = require_array(is_cloud ? steps.mesh().point_data : steps.mesh().cell_data, name,
                                          "partition", is_cloud ? "point" : "cell");
        if (array.type() == ScalarType::String || array.num_components() != 1)
            throw InvalidInput("{} {}; expected one part a row.", what,
                               array.type() == ScalarType::String
                                   ? "holds texts"
                                   : fmt::format("has {} components", array.num_components()));
        for (auto row = begin; row < end; ++row) owners.push_back(given_part(array, row));
        num_given = array.num_rows();
        steps.release_pages();
    }
    if (num_given != num_rows)
        throw InvalidInput("{} has {} rows, the mesh has {} to cut.", what, num_given,
                           count_text(num_rows, is_cloud ? "point" : "cell"));
    const auto highest =
        std::ranges::max(gather_everywhere(messages, std::vector{owners.empty() ? -1 : std::ranges::max(owners)}));
    if (arguments.num_parts == 0) arguments.num_parts = std::max(1, highest + 1);
    if (highest >= arguments.num_parts)
        throw UsageError("{} names part {}; -n is {}.", what, highest, arguments.num_parts);
    return owners;
}

void warn_of_nan(const CutSteps& steps, RankMessages& messages)
{
    for (const auto& [arrays, group] :
         {std::pair{&steps.mesh().point_data, "point"}, std::pair{&steps.mesh().cell_data, "cell"}})
        for (const DataArray& array : *arrays) {
            const auto rows = RankRanges::even(array.num_rows(), messages.size());
            const auto num_nan = sum_everywhere(messages, std::vector{count_nan(array, rows.begin(messages.rank()),
                                                                                rows.begin(messages.rank() + 1))})
                                     .front();
            steps.release_pages();
            if (num_nan > 0 && messages.rank() == 0)
                warn("partition", "the {} array '{}' has {} NaN; the shards keep them as they are.", group,
                     array.name(), num_nan);
        }
}

// Returns on all ranks the path of the folder that rank 0 has made, in which all ranks write.
std::filesystem::path share_path(RankMessages& messages, const std::optional<PartialFolder>& folder)
{
    const auto text = folder ? folder->path().string() : std::string();
    const auto shared = gather_everywhere(messages, std::vector<char>(text.begin(), text.end()));
    return std::string(shared.begin(), shared.end());
}

PartitionReport report_on(const std::string& source, const CutArguments& arguments, const CutSteps& steps)
{
    PartitionReport report;
    report.source = source;
    report.ghost_layers = arguments.ghost_layers;
    report.ghost_neighbors = arguments.ghosts;
    report.seed = arguments.seed;
    report.imbalance_allowed = arguments.imbalance;
    report.method = arguments.method;
    report.num_parts = arguments.num_parts;
    report.num_cells = steps.num_cells();
    report.num_points = steps.mesh().num_points();
    return report;
}

/// Returns the largest ratio of a part's rows to its share of all.
double imbalance_of_shares(const PartitionReport& report, std::span<const double> capacities)
{
    std::vector<std::int32_t> sizes;
    for (const auto& part : report.quality.parts) sizes.push_back(static_cast<std::int32_t>(part.num_owned));
    Partition itself{static_cast<std::int32_t>(sizes.size()), std::vector<std::int32_t>(sizes.size())};
    std::iota(itself.owners.begin(), itself.owners.end(), 0);
    return imbalances(itself, {.row_weights = sizes, .capacities = capacities}).front();
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

// Extracts the parts, writes them unless --dry-run, and adds them to the report.
void save(CutSteps& steps, CutJob& job, const MeshSource& source, RankMessages& messages)
{
    const auto& arguments = job.arguments;
    job.timer.begin(arguments.dry_run ? "extract" : "write");
    std::optional<PartialFolder> folder;
    if (!arguments.dry_run && messages.rank() == 0) folder.emplace(arguments.output);
    const auto path = share_path(messages, folder);
    ShardSink sink(path, parse_compression(arguments.compress), arguments.num_parts, messages.size(), job.timer);
    steps.extract_parts(job, sink);
    const auto shards = sink.gather(messages, steps.mesh(), job.report);
    if (!path.empty()) steps.dump(job, path);
    if (!folder) return;
    job.report.output = arguments.output;
    job.report.index_file = index_name(steps.mesh().kind);
    auto info = shards_info(job.report, arguments);
    info.source = source.path;
    info.source_hash = source.hash;
    for (auto& option : steps.options()) info.options.push_back(std::move(option));
    auto like = without_rows(steps.mesh(), arguments.num_parts, arguments.ghost_layers);
    like.cells.num_global = steps.num_cells();
    finish_shards(path, like, shards, std::move(info));
    folder->commit();
}

}  // namespace

StageTimer cut_timer()
{
    // These are fractions of the time for a million tetrahedra in 8 parts.
    return StageTimer({{"read", 0.06},
                       {"graph", 0.16},
                       {"partition", 0.4},
                       {"quality", 0.03},
                       {"ghosts", 0.03},
                       {"extract", 0.32},
                       {"write", 0.32}});
}

PartitionReport cut_and_save(CutSteps& steps, const MeshSource& source, const CutArguments& asked,
                             RankMessages& messages, StageTimer& timer)
{
    CutArguments arguments = asked;
    const auto num_rows = steps.num_cells() == 0 ? steps.mesh().num_points() : steps.num_cells();
    require_rows(steps, num_rows, source.name, arguments);
    auto given = given_partition(steps, num_rows, arguments, messages);
    require_rows(steps, num_rows, source.name, arguments);  // the partition that is given says how many parts
    const auto capacities = part_capacities(arguments);
    PartitionReport report = report_on(source.name, arguments, steps);
    CutJob job{arguments, std::move(given), report, timer};
    const bool is_first = messages.rank() == 0;
    if (is_first && !arguments.dry_run) {
        const auto folder = std::filesystem::absolute(arguments.output).lexically_normal();
        if (const auto size = size_of_small_parts(arguments.num_parts, num_rows, folder.parent_path()); !size.empty())
            warn("partition", "{}: {}.", source.name, size);
    }
    if (constexpr std::int64_t most_empty = 1'000'000; arguments.num_parts - num_rows > most_empty)
        throw UsageError("{} parts of {} are asked for; at most {} parts may stay empty. Ask for fewer.",
                         arguments.num_parts, count_text(num_rows, steps.num_cells() == 0 ? "point" : "cell"),
                         most_empty);

    warn_of_nan(steps, messages);
    timer.begin("graph");
    steps.find_graph(job);
    timer.begin("partition");
    steps.cut(job);
    steps.find_ghosts(job);
    if (!capacities.empty()) report.quality.imbalance = imbalance_of_shares(report, capacities);
    if (is_first) warn_of_pieces(report.in_pieces);
    if (is_first && !is_given_partition(arguments.method)) warn_of_imbalance(report);
    if (is_first) warn_of_crowds(source.name, steps.crowds());
    const auto unjoined = describe(steps.unjoined_cells(), source.name, "face",
                                   arguments.ghosts == "face" ? "there are no ghosts and no cut faces between them."
                                                              : "there are no cut faces between them.");
    if (!unjoined.empty() && is_first) warn("partition", source.name + ": " + unjoined);
    save(steps, job, source, messages);
    if (!arguments.preview.empty()) {
        timer.begin("preview");
        std::optional<MadeFolders> folders;
        if (is_first) folders.emplace(arguments.preview);
        steps.draw(job, arguments.preview);
    }
    // This also keeps every rank here until all are done.
    const auto peaks = gather_everywhere(messages, std::vector{peak_memory_bytes()});
    report.peak_bytes = std::ranges::max(peaks);
    report.seconds = timer.finish();
    report.stage_peaks = timer.peaks();
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
