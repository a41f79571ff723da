// SPDX-License-Identifier: Apache-2.0
#include "apps/cut/streamed_cut.h"

#include "apps/cut/mesh_cut.h"
#include "apps/program/command_line.h"
#include "apps/program/text_table.h"
#include "io/shards/shards_writer.h"
#include "io/shards/subdomain_io.h"
#include "partition/cut/partitioner.h"
#include "sharding/windows/curve_windows.h"
#include "sharding/windows/window_cut.h"

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

std::int64_t num_rows(const MappedMesh& mesh)
{
    return mesh.num_cells() > 0 ? mesh.num_cells() : mesh.num_points();
}

// Divides the memory that a rank may take, by bytes measured on meshes of tetrahedra, hexahedra and polyhedra, and on clouds.
RankSizes plan_memory(const MappedMesh& mesh, const std::string& file, const CutArguments& arguments, int num_ranks)
{
    RankSizes sizes;
    if (arguments.max_memory == 0) return sizes;
    const auto ranks = static_cast<double>(num_ranks);
    const auto cells = static_cast<double>(num_rows(mesh)), points = mesh.num_cells() > 0 ? static_cast<double>(mesh.num_points()) : 0;  // beside the cells
    double row_bytes = 0;
    for (const auto& array : mesh.rest().cell_data) row_bytes += array.num_components() * static_cast<double>(size_of(array.type()));
    for (const auto& array : mesh.rest().point_data)
        row_bytes += array.num_components() * static_cast<double>(size_of(array.type())) * static_cast<double>(mesh.num_points()) / cells;
    const double entries = static_cast<double>(mesh.num_cell_entries()) / cells;  // of connectivity and faces
    constexpr double program = 45e6;
    constexpr double fewest = 2000;
    const double block_bytes = arguments.method == "scotch" ? 1200 : 450;  // indices of 64 bits
    constexpr double share = 0.45;                                         // of what is left beside the program: a window; later the graph of blocks
    const auto rule = parse_ghost_rule(arguments.ghosts);
    const bool has_distances = rule.neighbors == GhostNeighbors::Radius || rule.neighbors == GhostNeighbors::Nearest;
    const bool rows_are_points = points == 0 || entries == 1;  // whose graph is that of the 8 nearest
    const int num_nearest = std::max(rows_are_points ? 8 : 0, rule.num_nearest);
    const double window_bytes = std::max(60 + 40 * entries, num_nearest > 0 ? 150 + 20.0 * num_nearest : has_distances ? 150 : 0);
    const double part_bytes = 80 + 24 * entries + 4 * row_bytes + 60 * points / cells;
    const auto num_weights = static_cast<double>(weight_names(arguments).size());
    const double kept = cells / ranks * ((ranks > 1 ? 48 : 26) + (num_weights > 0 ? 8 + 4 * num_weights : 0)) +
                        points / ranks * (rule == GhostRule{} || has_distances ? 10 : 15) + points / 8 +
                        cells / ranks * ((has_distances ? 12 : 0) + (num_nearest > 0 ? 8 : 0));
    const double part = part_bytes * 1.2 * cells / arguments.num_parts;
    const double needed = program + std::max({kept / (1 - share), kept + part, fewest * std::max(window_bytes, block_bytes) / share});
    const auto allowed = static_cast<double>(arguments.max_memory);
    if (allowed < needed)
        throw UsageError("--max-memory of " + memory_text(allowed - 1048576) + " is too little for " + file + ": its " + std::to_string(num_rows(mesh)) +
                         (points > 0 ? " cells in " : " points in ") + std::to_string(arguments.num_parts) + " parts need about " + memory_text(needed) +
                         " a rank. Allow that" + (part > kept ? ", or ask for more parts." : ", or start more ranks."));
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
    if (arguments.method.starts_with("file:")) refuse("--method " + arguments.method);
    if (is_given_partition(arguments.method) && (arguments.refine || arguments.quality || arguments.contiguous))
        refuse(std::string(arguments.contiguous ? "--contiguous" : arguments.quality ? "--quality" : "--refine") + " of a given partition");
    if (!arguments.preview.empty()) refuse("--preview");
    if (!arguments.dump.empty()) refuse("--dump");
}

// The array of the mesh that is asked for as a partition, checked and its parts counted; or null.
const DataArray* given_partition(const MappedMesh& mesh, CutArguments& arguments, RankMessages& messages)
{
    if (!is_given_partition(arguments.method)) return nullptr;
    const bool is_cloud = mesh.num_cells() == 0;
    const auto& array = require_array(is_cloud ? mesh.rest().point_data : mesh.rest().cell_data, arguments.method.substr(arguments.method.find(':') + 1),
                                      "partition", is_cloud ? "point" : "cell");
    const auto rows = RankRanges::even(array.num_rows(), messages.size());
    std::int32_t highest = -1;
    for (auto row = rows.begin(messages.rank()); row < rows.begin(messages.rank() + 1); ++row) highest = std::max(highest, given_part(array, row));
    mesh.release_pages();
    highest = std::ranges::max(gather_everywhere(messages, std::vector{highest}));
    if (arguments.num_parts == 0) arguments.num_parts = highest + 1;
    if (highest >= arguments.num_parts)
        throw UsageError("the array '" + array.name() + "' names part " + std::to_string(highest) + "; -n is " + std::to_string(arguments.num_parts) + ".");
    return &array;
}

// Writes each part on the rank that its turn falls on.
class PartWriter {
public:
    PartWriter(const MappedMesh& mesh, const WindowCut& cut, RankMessages& messages, std::int32_t num_parts, std::int32_t num_ghost_layers,
               Compression compression)
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
        const bool is_cloud = mesh_.num_cells() == 0;
        Subdomain result = without_rows();
        result.part = std::max(part, 0);
        auto& row_map = is_cloud ? result.points : result.cells;
        row_map.num_owned = static_cast<std::int32_t>(rows.owned.size());
        row_map.global_ids.assign(rows.owned.begin(), rows.owned.end());
        result.ghost_levels.assign(rows.owned.size(), 0);
        std::vector<std::int32_t> ids = rows.owned;
        for (const auto& ghost : rows.ghosts) {
            ids.push_back(ghost.id);
            row_map.global_ids.push_back(ghost.id);
            row_map.ghost_owners.push_back(ghost.owner);
            result.ghost_levels.push_back(static_cast<std::uint8_t>(ghost.level));
        }
        if (is_cloud) {
            result.mesh.points = mesh_.rest().points.gather(ids);
            for (std::size_t i = 0; i < mesh_.rest().point_data.size(); ++i) result.mesh.point_data[i] = mesh_.rest().point_data[i].gather(ids);
            return result;
        }
        Mesh mesh = mesh_.cells(ids);

        auto points = mesh.cells.indices;
        points.insert(points.end(), rows.unused_points.begin(), rows.unused_points.end());
        std::ranges::sort(points);
        points.erase(std::ranges::unique(points).begin(), points.end());
        const auto owners = cut_.owners_of_points(points);
        if (part < 0) return result;
        std::vector<std::int32_t> order;  // local row -> place in `points`
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

}  // namespace

std::int64_t parse_memory_size(const std::string& text)
{
    double number = 0;
    const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    std::string unit(at, text.data() + text.size());
    if (unit.ends_with("iB"))
        unit.resize(unit.size() - 2);
    else if (unit.ends_with("B"))
        unit.resize(unit.size() - 1);
    const std::map<std::string, double> units{{"", 1}, {"K", 0x1p10}, {"M", 0x1p20}, {"G", 0x1p30}, {"T", 0x1p40}};
    const auto found = units.find(unit);
    if (error != std::errc{} || found == units.end() || !(number > 0) || number * found->second > 0x1p60)
        throw UsageError("--max-memory is '" + text + "'; expected a size such as 800M or 2G.");
    return static_cast<std::int64_t>(number * found->second);
}

PartitionReport cut_in_windows(const std::string& file, const CutArguments& asked, RankMessages& messages, StageTimer& timer)
{
    auto arguments = asked;
    refuse_what_needs_the_whole(arguments);
    timer.begin("read");
    const MappedMesh mesh(file);
    if (num_rows(mesh) == 0) throw InvalidInput(file + " has no cells and no points; there is nothing to cut. Is it the right file?");
    const auto* given = given_partition(mesh, arguments, messages);
    if (given == nullptr && arguments.num_parts > num_rows(mesh) && !arguments.allow_empty)
        throw UsageError(file + " has " + count_text(num_rows(mesh), mesh.num_cells() > 0 ? "cell" : "point") + ", fewer than the " +
                         std::to_string(arguments.num_parts) + " parts asked for. Ask for fewer, or leave the rest empty with --allow-empty.");
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
                   .method = arguments.method,
                   .given = given,
                   .levels = arguments.levels.empty() ? std::vector<std::int32_t>{} : parse_levels(arguments.levels),
                   .contiguous = arguments.contiguous,
                   .thorough = arguments.quality,
                   .ghost_share = ghost_share(arguments.objective),
                   .weights = weights,
                   .capacities = arguments.capacities.empty() ? std::vector<double>{} : parse_numbers(arguments.capacities, "--capacities"),
                   .most_blocks = sizes.most_blocks});
    trim_memory();
    if (given == nullptr && !arguments.no_refine &&
        (partition_method(arguments.method).refine || arguments.refine || arguments.quality || arguments.contiguous)) {
        timer.begin("refine");
        cut.refine();
    }
    cut.number_along_curve();
    timer.begin("ghosts");
    report.quality = cut.find_ghosts(arguments.ghost_layers, parse_ghost_rule(arguments.ghosts));
    for (std::size_t part = 0; arguments.contiguous && part < report.quality.parts.size(); ++part)
        if (report.quality.parts[part].num_components > 1) report.in_pieces.push_back(static_cast<std::int32_t>(part));
    warn_of_pieces(report.in_pieces);  // known to rank 0
    if (const auto crowded = windows.crowded_cell(); crowded >= 0 && messages.rank() == 0) warn("partition", file + ": " + crowded_text(crowded));
    const auto imbalances = cut.imbalances();
    for (std::size_t w = 0; w < imbalances.size(); ++w)
        report.imbalances.emplace_back(!weights.empty() ? weights[w] : mesh.num_cells() > 0 ? "cells" : "points", imbalances[w]);
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
        auto info = shards_info(report, arguments);
        info.source = file;
        info.options.emplace_back("cells_a_window", std::to_string(sizes.cells_a_window));
        writer.finish(path, std::move(info));
        folder->commit();
    }
    const auto peaks = gather_everywhere(messages, std::vector{peak_memory_bytes()});  // and nobody is done before all are
    report.peak_bytes = std::ranges::max(peaks);
    report.seconds = timer.finish();
    return report;
}

}  // namespace meshard
