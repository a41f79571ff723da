// SPDX-License-Identifier: Apache-2.0
#include "apps/streamed_cut.h"

#include "apps/command_line.h"
#include "apps/curve_windows.h"
#include "apps/mesh_cut.h"
#include "apps/text_table.h"
#include "apps/version.h"
#include "apps/window_cut.h"
#include "io/shards_writer.h"
#include "io/subdomain_io.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace meshard {

namespace {

// What the C library keeps of freed memory would count against the bound.
void trim_memory()
{
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

struct RankSizes {
    std::int64_t cells_a_window = 200'000;
    std::int64_t most_blocks = 2'000'000;
    std::int64_t cache_bytes = std::int64_t{1} << 40;
};

std::string memory_text(double bytes)
{
    return std::to_string(static_cast<std::int64_t>(bytes / 1048576) + 1) + "M";
}

// Divides the memory that a rank may take, by bytes measured on meshes of tetrahedra, hexahedra and polyhedra.
RankSizes plan_memory(const MappedMesh& mesh, const std::string& file, const CutArguments& arguments, int num_ranks)
{
    RankSizes sizes;
    if (arguments.max_memory == 0) return sizes;
    const auto ranks = static_cast<double>(num_ranks);
    const auto cells = static_cast<double>(mesh.num_cells()), points = static_cast<double>(mesh.num_points());
    double row_bytes = 0;
    for (const auto& array : mesh.rest().cell_data) row_bytes += array.num_components() * static_cast<double>(size_of(array.type()));
    for (const auto& array : mesh.rest().point_data) row_bytes += array.num_components() * static_cast<double>(size_of(array.type())) * points / cells;
    const double entries = static_cast<double>(mesh.num_cell_entries()) / cells; // of connectivity and faces
    constexpr double program = 45e6;
    constexpr double block_bytes = 450, fewest = 2000;
    constexpr double share = 0.45; // of what is left beside the program: a window; later the graph of blocks
    const double window_bytes = 60 + 40 * entries;
    const double part_bytes = 80 + 24 * entries + 4 * row_bytes + 60 * points / cells;
    const auto num_weights = static_cast<double>(weight_names(arguments).size());
    const double kept = cells / ranks * ((ranks > 1 ? 48 : 26) + (num_weights > 0 ? 8 + 4 * num_weights : 0)) +
                        points / ranks * (parse_ghost_rule(arguments.ghosts) == GhostRule{} ? 10 : 15) + points / 8;
    const double part = part_bytes * 1.2 * cells / arguments.num_parts;
    const double needed = program + std::max({kept / (1 - share), kept + part, fewest * std::max(window_bytes, block_bytes) / share});
    const auto allowed = static_cast<double>(arguments.max_memory);
    if (allowed < needed)
        throw UsageError("--max-memory of " + memory_text(allowed - 1048576) + " is too little for " + file + ": its " + std::to_string(mesh.num_cells()) + " cells in " +
                         std::to_string(arguments.num_parts) + " parts need about " + memory_text(needed) + " a rank. Allow that" +
                         (part > kept ? ", or ask for more parts." : ", or start more ranks."));
    // Not of the number of ranks, on which the shards must not depend.
    sizes.cells_a_window = static_cast<std::int64_t>(std::min(share * (allowed - program) / window_bytes, 1e6));
    sizes.most_blocks = static_cast<std::int64_t>(std::min(share * (allowed - program) / block_bytes, 2e6));
    sizes.cache_bytes = 0;
    return sizes;
}

void refuse_what_needs_the_whole(const CutArguments& arguments)
{
    const auto refuse = [](const std::string& what) {
        throw UsageError(what + " needs the whole mesh in one memory. Leave it out, or run one process without --max-memory.");
    };
    if (arguments.method != "metis" && arguments.method != "hilbert") refuse("--method " + arguments.method);
    if (!arguments.levels.empty()) refuse("--levels");
    const auto neighbors = parse_ghost_rule(arguments.ghosts).neighbors;
    if ((neighbors == GhostNeighbors::Radius || neighbors == GhostNeighbors::Nearest) && arguments.ghost_layers > 0) refuse("--ghosts " + arguments.ghosts);
    if (arguments.contiguous) refuse("--contiguous");
    if (!arguments.preview.empty()) refuse("--preview");
    if (!arguments.dump.empty()) refuse("--dump");
}

// Writes each part on the rank that its turn falls on.
class PartWriter {
public:
    PartWriter(const MappedMesh& mesh, const WindowCut& cut, RankMessages& messages, std::int32_t num_parts, std::int32_t num_ghost_layers, Compression compression)
        : mesh_(mesh), cut_(cut), messages_(messages), num_parts_(num_parts), num_ghost_layers_(num_ghost_layers), compression_(compression)
    {
    }

    /// Collective. @return the shards that this rank wrote, and counts of all parts into the report.
    void write_all(const std::filesystem::path& folder, bool is_dry, PartitionReport& report)
    {
        std::vector<Written> mine;
        for (std::int32_t first = 0; first < num_parts_; first += messages_.size()) {
            const auto part = first + messages_.rank();
            auto subdomain = next_part(first, part < num_parts_ ? part : -1);
            mesh_.release_pages();
            if (part >= num_parts_) continue;
            Written written;
            written.part = part;
            written.cells = {subdomain.cells.num_owned, subdomain.cells.num_ghosts()};
            written.points = {subdomain.points.num_owned, subdomain.points.num_ghosts()};
            if (!is_dry) {
                const auto shard = write_shard(folder, subdomain, compression_);
                written.bytes = shard.part.num_bytes;
                written.bounds = shard.bounds;
                std::ranges::copy(shard.part.file, written.file.begin());
                std::ranges::copy(shard.part.hash, written.hash.begin());
            }
            mine.push_back(written);
            trim_memory();
        }
        written_ = gather_on_first(messages_, std::move(mine));
        std::ranges::sort(written_, {}, &Written::part);
        for (const auto& written : written_) {
            report.cells.push_back(written.cells);
            report.points.push_back(written.points);
            if (!is_dry) report.bytes.push_back(written.bytes);
        }
    }

    /// On rank 0, after `write_all`.
    void finish(const std::filesystem::path& folder, ShardsInfo info) const
    {
        std::vector<WrittenShard> shards;
        for (const auto& written : written_)
            shards.push_back({{.file = written.file.data(),
                               .num_owned_cells = written.cells.owned,
                               .num_ghost_cells = written.cells.ghosts,
                               .num_owned_points = written.points.owned,
                               .num_ghost_points = written.points.ghosts,
                               .num_bytes = written.bytes,
                               .hash = written.hash.data()},
                              written.bounds});
        finish_shards(folder, without_rows(), shards, std::move(info));
    }

private:
    // As it travels.
    struct Written {
        std::int32_t part = 0;
        RowCounts cells, points;
        std::int64_t bytes = 0;
        std::array<double, 6> bounds{};
        std::array<char, 64> file{}, hash{};
    };

    Subdomain without_rows() const
    {
        auto like = meshard::without_rows(mesh_.rest(), num_parts_, num_ghost_layers_);
        like.cells.num_global = mesh_.num_cells();
        return like;
    }

    // Collective: all ranks take part in finding the parts first, first + 1, ..., one for each rank; -1 where there is none.
    Subdomain next_part(std::int32_t first, std::int32_t part)
    {
        const auto rows = cut_.rows_of_parts(first);
        Subdomain result = without_rows();
        result.part = std::max(part, 0);
        auto& cells = result.cells;
        cells.num_owned = static_cast<std::int32_t>(rows.owned.size());
        cells.global_ids.assign(rows.owned.begin(), rows.owned.end());
        result.ghost_levels.assign(rows.owned.size(), 0);
        std::vector<std::int32_t> ids = rows.owned;
        for (const auto& ghost : rows.ghosts) {
            ids.push_back(ghost.id);
            cells.global_ids.push_back(ghost.id);
            cells.ghost_owners.push_back(ghost.owner);
            result.ghost_levels.push_back(static_cast<std::uint8_t>(ghost.level));
        }
        Mesh mesh = mesh_.cells(ids);

        auto points = mesh.cells.indices;
        points.insert(points.end(), rows.unused_points.begin(), rows.unused_points.end());
        std::ranges::sort(points);
        points.erase(std::ranges::unique(points).begin(), points.end());
        const auto owners = cut_.owners_of_points(points);
        if (part < 0) return result;
        std::vector<std::int32_t> order; // local row -> place in `points`
        for (std::size_t i = 0; i < points.size(); ++i)
            if (owners[i] == part) order.push_back(static_cast<std::int32_t>(i));
        result.points.num_owned = static_cast<std::int32_t>(order.size());
        for (std::size_t i = 0; i < points.size(); ++i)
            if (owners[i] != part) order.push_back(static_cast<std::int32_t>(i));
        std::stable_sort(order.begin() + result.points.num_owned, order.end(), [&](auto a, auto b) { return owners[a] < owners[b]; });
        std::vector<std::int32_t> local(points.size()), rows_of_points;
        for (std::size_t row = 0; row < order.size(); ++row) {
            local[order[row]] = static_cast<std::int32_t>(row);
            rows_of_points.push_back(points[order[row]]);
            result.points.global_ids.push_back(points[order[row]]);
            if (static_cast<std::int32_t>(row) >= result.points.num_owned) result.points.ghost_owners.push_back(owners[order[row]]);
        }
        const auto to_local = [&](std::int32_t& point) { point = local[std::ranges::lower_bound(points, point) - points.begin()]; };
        for (auto& point : mesh.cells.indices) to_local(point);
        for_each_face_point(mesh.face_streams, [&](std::int64_t, std::int32_t& point) { to_local(point); });
        mesh.points = mesh_.rest().points.gather(rows_of_points);
        for (const auto& array : mesh_.rest().point_data) mesh.point_data.push_back(array.gather(rows_of_points));
        for (const auto& array : mesh_.rest().cell_data) {
            mesh.cell_data.push_back(array.gather(ids));
            mesh_.release_pages();
        }
        mesh.field_data = mesh_.rest().field_data;
        result.mesh = std::move(mesh);
        return result;
    }

    const MappedMesh& mesh_;
    const WindowCut& cut_;
    RankMessages& messages_;
    std::int32_t num_parts_, num_ghost_layers_;
    Compression compression_;
    std::vector<Written> written_;
};

// The folder in which all ranks write: made by rank 0, known to all.
std::filesystem::path share_path(RankMessages& messages, const std::optional<PartialFolder>& folder)
{
    std::vector<char> name;
    if (folder) {
        const auto text = folder->path().string();
        name.assign(text.begin(), text.end());
    }
    const auto shared = gather_everywhere(messages, name);
    return std::string(shared.begin(), shared.end());
}

// What `partition` says of a whole mesh, said once.
void warn_of_faults(const std::string& file, const MappedMesh& mesh, const CurveWindows& windows, RankMessages& messages)
{
    for (const auto& text : describe(windows.faults()))
        if (messages.rank() == 0) warn("partition", file + ": " + text);
    for (const auto& [arrays, group] : {std::pair{&mesh.rest().point_data, "point"}, std::pair{&mesh.rest().cell_data, "cell"}})
        for (const auto& array : *arrays) {
            const auto rows = RankRanges::even(array.num_rows(), messages.size());
            const auto num_nan = sum_everywhere(messages, std::vector{count_nan(array, rows.begin(messages.rank()), rows.begin(messages.rank() + 1))}).front();
            mesh.release_pages();
            if (num_nan > 0 && messages.rank() == 0) warn("partition", nan_text(array, group, num_nan));
        }
}

} // namespace

std::int64_t parse_memory_size(const std::string& text)
{
    double number = 0;
    const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    std::string unit(at, text.data() + text.size());
    if (unit.ends_with("iB")) unit.resize(unit.size() - 2);
    else if (unit.ends_with("B")) unit.resize(unit.size() - 1);
    const std::map<std::string, double> units{{"", 1}, {"K", 0x1p10}, {"M", 0x1p20}, {"G", 0x1p30}, {"T", 0x1p40}};
    const auto found = units.find(unit);
    if (error != std::errc{} || found == units.end() || !(number > 0) || number * found->second > 0x1p60)
        throw UsageError("--max-memory is '" + text + "'; expected a size such as 800M or 2G.");
    return static_cast<std::int64_t>(number * found->second);
}

PartitionReport cut_in_windows(const std::string& file, const CutArguments& arguments, RankMessages& messages, StageTimer& timer)
{
    refuse_what_needs_the_whole(arguments);
    timer.begin("read");
    const MappedMesh mesh(file);
    if (mesh.num_cells() == 0)
        throw InvalidInput(file + " has no cells. Point clouds are cut by one process without --max-memory.");
    if (arguments.num_parts > mesh.num_cells() && !arguments.allow_empty)
        throw UsageError(file + " has " + std::to_string(mesh.num_cells()) + " cells, fewer than the " + std::to_string(arguments.num_parts) +
                         " parts asked for. Ask for fewer, or leave the rest empty with --allow-empty.");
    const auto sizes = plan_memory(mesh, file, arguments, messages.size());

    PartitionReport report = report_on(file, arguments, mesh.num_cells(), mesh.num_points());
    report.num_parts = arguments.num_parts;
    report.method = arguments.method;

    timer.begin("graph");
    CurveWindows windows(mesh, messages, sizes.cells_a_window, sizes.cache_bytes);
    warn_of_faults(file, mesh, windows, messages);
    trim_memory();
    timer.begin("partition");
    const auto weights = weight_names(arguments);
    WindowCut cut(windows, messages,
                  {.num_parts = arguments.num_parts,
                   .imbalance = arguments.imbalance,
                   .seed = static_cast<std::uint64_t>(arguments.seed),
                   .by_curve = arguments.method == "hilbert",
                   .thorough = arguments.quality,
                   .weights = weights,
                   .capacities = arguments.capacities.empty() ? std::vector<double>{} : parse_numbers(arguments.capacities, "--capacities"),
                   .most_blocks = sizes.most_blocks});
    trim_memory();
    if (arguments.refine || arguments.quality || (!arguments.no_refine && arguments.method == "metis")) {
        timer.begin("refine");
        cut.refine();
    }
    cut.number_along_curve();
    timer.begin("ghosts");
    report.quality = cut.find_ghosts(arguments.ghost_layers, parse_ghost_rule(arguments.ghosts).neighbors);
    if (const auto crowded = windows.crowded_cell(); crowded >= 0 && messages.rank() == 0) warn("partition", file + ": " + crowded_text(crowded));
    const auto imbalances = cut.imbalances();
    for (std::size_t w = 0; w < imbalances.size(); ++w) report.imbalances.emplace_back(weights.empty() ? "cells" : weights[w], imbalances[w]);
    cut.settle_points(windows.take_first_cells());
    trim_memory();

    timer.begin("write");
    std::optional<PartialFolder> folder;
    if (!arguments.dry_run && messages.rank() == 0) folder.emplace(arguments.output);
    const auto path = share_path(messages, folder);
    PartWriter writer(mesh, cut, messages, arguments.num_parts, arguments.ghost_layers, parse_compression(arguments.compress));
    writer.write_all(path, arguments.dry_run, report);
    std::int64_t cell_bytes = 0, point_bytes = 0;
    for (const auto& array : mesh.rest().cell_data) cell_bytes += array.num_components() * static_cast<std::int64_t>(size_of(array.type()));
    for (const auto& array : mesh.rest().point_data) point_bytes += array.num_components() * static_cast<std::int64_t>(size_of(array.type()));
    for (std::size_t p = 0; p < report.cells.size(); ++p)
        report.ghost_bytes.push_back(cell_bytes * report.cells[p].ghosts + point_bytes * report.points[p].ghosts);
    if (folder) {
        report.output = arguments.output;
        report.index_file = index_name(mesh.rest().kind);
        ShardsInfo info;
        info.source = file;
        info.method = report.method;
        info.seed = arguments.seed;
        info.options = {{"num_parts", std::to_string(arguments.num_parts)},
                        {"ghost_layers", std::to_string(arguments.ghost_layers)},
                        {"ghost_neighbors", arguments.ghosts},
                        {"imbalance", number_text(arguments.imbalance)},
                        {"cells_a_window", std::to_string(sizes.cells_a_window)}};
        if (!arguments.weights.empty()) info.options.emplace_back("weights", arguments.weights);
        if (!arguments.capacities.empty()) info.options.emplace_back("capacities", arguments.capacities);
        info.versions = library_versions();
        info.versions.insert(info.versions.begin(), {"meshard", program_version()});
        info.quality = report.quality;
        writer.finish(path, std::move(info));
        folder->commit();
    }
    const auto peaks = gather_everywhere(messages, std::vector{peak_memory_bytes()}); // and nobody is done before all are
    report.peak_bytes = std::ranges::max(peaks);
    report.seconds = timer.finish();
    return report;
}

} // namespace meshard
