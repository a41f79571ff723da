// SPDX-License-Identifier: Apache-2.0
#include "apps/cut/window_steps.h"

#include "apps/console/console.h"
#include "io/picture/outer_surface.h"
#include "io/picture/render.h"
#include "io/shards/partition_dump.h"
#include "io/shards/shards_writer.h"
#include "partition/cut/partitioner.h"
#include "partition/error.h"
#include "partition/ghosts/ghost_graph.h"
#include "partition/lists.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <span>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace meshard {

namespace {

// Returns freed memory to the system, since what the C library keeps would count against the limit.
void trim_memory()
{
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

std::string memory_text(double bytes)
{
    return std::to_string(static_cast<std::int64_t>(bytes / 1048576) + 1) + "M";
}

// Divides the memory that a rank may use. The bytes are measured on meshes of tetrahedra, hexahedra and polyhedra, and
// on point clouds.
WindowSteps::Sizes plan_memory(const StoredMesh& mesh, const std::string& file, const CutArguments& arguments,
                               int num_ranks)
{
    WindowSteps::Sizes sizes;
    if (arguments.max_memory == 0) return sizes;
    const auto ranks = static_cast<double>(num_ranks);
    // A cloud has no points besides its rows.
    const auto cells = static_cast<double>(mesh.num_rows()),
               points = mesh.num_cells() > 0 ? static_cast<double>(mesh.num_points()) : 0;
    double row_bytes = 0;
    for (const auto& array : mesh.rest().cell_data)
        row_bytes += array.num_components() * static_cast<double>(size_of(array.type()));
    for (const auto& array : mesh.rest().point_data)
        row_bytes += array.num_components() * static_cast<double>(size_of(array.type())) *
                     static_cast<double>(mesh.num_points()) / cells;
    const double entries = static_cast<double>(mesh.num_cell_entries()) / cells;  // connectivity and faces
    constexpr double program = 45e6;
    // Besides a window, a rank holds its own picture and one that it receives.
    const double picture = arguments.preview.empty() ? 0 : 130e6;
    constexpr double fewest = 2000;
    // Parts of few blocks could be empty or above their bound; runs of equal length along the curve need no blocks.
    const bool is_along_curve = arguments.method == "hilbert" && !arguments.contiguous && arguments.levels.empty() &&
                                weight_names(arguments).empty() && part_capacities(arguments).empty();
    const double fewest_blocks =
        is_along_curve ? fewest : std::max(fewest, std::min(1.5 * cells, 12.0 * arguments.num_parts));
    const double block_bytes = arguments.method == "scotch" ? 1200 : 450;  // Scotch's indices have 64 bits
    // A window, and later the graph of blocks, takes this share of the memory besides the program.
    constexpr double share = 0.45;
    const auto rule = parse_ghost_rule(arguments.ghosts);
    const bool has_distances = rule.neighbors == GhostNeighbors::Radius || rule.neighbors == GhostNeighbors::Nearest;
    const bool rows_are_points = points == 0 || entries == 1;  // the graph connects each point with its 8 nearest
    const int num_nearest = std::max(rows_are_points ? 8 : 0, rule.num_nearest);
    const double window_bytes = std::max(60 + 40 * entries, num_nearest > 0 ? 180 + 20.0 * num_nearest
                                                            : has_distances ? 180
                                                                            : 0);
    const double part_bytes = 80 + 24 * entries + 4 * row_bytes + 60 * points / cells;
    const auto num_weights = static_cast<double>(weight_names(arguments).size());
    const double kept = cells / ranks * ((ranks > 1 ? 48 : 26) + (num_weights > 0 ? 8 + 4 * num_weights : 0)) +
                        points / ranks * (rule == GhostRule{} || has_distances ? 10 : 15) + points / 8 +
                        cells / ranks * ((has_distances ? 24 : 0) + (num_nearest > 0 ? 8 : 0));
    const double part = part_bytes * 1.2 * cells / arguments.num_parts;
    const double needed =
        program + picture +
        std::max({kept / (1 - share), kept + part, fewest * window_bytes / share, fewest_blocks * block_bytes / share});
    const auto allowed = static_cast<double>(arguments.max_memory);
    if (allowed < needed)
        throw UsageError("--max-memory of {} is too little for {}: its {} {} in {} parts need about {} on "
                         "each rank. Allow that, or {}.",
                         memory_text(allowed - 1048576), file, mesh.num_rows(), points > 0 ? "cells" : "points",
                         arguments.num_parts, memory_text(needed),
                         part > kept ? "ask for more parts" : "start more ranks");
    // These sizes do not depend on the number of ranks, since the shards must not.
    sizes.cells_a_window = static_cast<std::int64_t>(std::min(share * (allowed - program) / window_bytes, 1e6));
    sizes.most_blocks = static_cast<std::int64_t>(std::min(share * (allowed - program) / block_bytes, 2e6));
    sizes.cache_bytes = 0;
    // Rank 0 holds these rows of the graph twice, as received and as stored.
    sizes.dumped_cells =
        static_cast<std::int64_t>(std::max(share * (allowed - program) / (100 + 40 * entries), fewest));
    return sizes;
}

// Prints on rank 0 the warnings that reading a whole mesh gives.
void warn_of_faults(const std::string& file, const CurveWindows& windows, RankMessages& messages)
{
    for (const auto& text : describe(windows.faults()))
        if (messages.rank() == 0) warn("partition", file + ": " + text);
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
        throw UsageError("--max-memory is '{}'; expected a size such as 800M or 2G.", text);
    return static_cast<std::int64_t>(number * found->second);
}

WindowSteps::WindowSteps(const StoredMesh& mesh, const MeshSource& source, RankMessages& messages)
    : mesh_(mesh), source_(source), messages_(messages)
{
}

WindowSteps::~WindowSteps() = default;

void WindowSteps::find_graph(CutJob& job)
{
    if (mesh_.num_rows() == 0)
        throw InvalidInput(
            "{} has no cells and no points; there are no windows to cut. Run one process without --max-memory.",
            source_.name);
    sizes_ = plan_memory(mesh_, source_.name, job.arguments, messages_.size());
    windows_.emplace(mesh_, messages_, sizes_.cells_a_window, sizes_.cache_bytes);
    warn_of_faults(source_.name, *windows_, messages_);
    trim_memory();
}

void WindowSteps::cut(CutJob& job)
{
    const auto& arguments = job.arguments;
    const bool improves = arguments.refine || arguments.quality || arguments.contiguous;
    const auto weights = weight_names(arguments);
    cut_.emplace(*windows_, messages_,
                 WindowCutOptions{.num_parts = arguments.num_parts,
                                  .imbalance = arguments.imbalance,
                                  .seed = static_cast<std::uint64_t>(arguments.seed),
                                  .method = arguments.method,
                                  .given = job.given ? &*job.given : nullptr,
                                  .repair_given = improves,
                                  .levels = arguments.levels.empty() ? std::vector<std::int32_t>{}
                                                                     : parse_levels(arguments.levels),
                                  .contiguous = arguments.contiguous,
                                  .thorough = arguments.quality,
                                  .ghost_share = ghost_share(arguments.objective),
                                  .weights = weights,
                                  .capacities = part_capacities(arguments),
                                  .most_blocks = sizes_.most_blocks});
    trim_memory();
    if (job.given ? improves : !arguments.no_refine && (improves || partition_method(arguments.method).refine)) {
        job.timer.begin("refine");
        cut_->refine();
    }
    cut_->number_along_curve();
    job.given.reset();
    const auto imbalances = cut_->imbalances();
    job.report.is_above_bound = cut_->exceeds_bounds();
    const std::string row = mesh_.is_point_cloud() ? "points" : "cells";
    for (std::size_t w = 0; w < imbalances.size(); ++w)
        job.report.imbalances.emplace_back(weights.empty() ? row : weights[w], imbalances[w]);
}

void WindowSteps::find_ghosts(CutJob& job)
{
    job.timer.begin("ghosts");
    auto& report = job.report;
    report.quality = cut_->find_ghosts(job.arguments.ghost_layers, parse_ghost_rule(job.arguments.ghosts));
    for (std::size_t part = 0; job.arguments.contiguous && part < report.quality.parts.size(); ++part)
        if (report.quality.parts[part].num_components > 1) report.in_pieces.push_back(static_cast<std::int32_t>(part));
    crowds_ = windows_->crowds();
    unjoined_.num_isolated = cut_->num_isolated();
    cut_->settle_points(windows_->take_first_cells());
    trim_memory();
}

void WindowSteps::extract_parts(CutJob& job, ShardSink& sink)
{
    const auto num_parts = job.arguments.num_parts;
    auto like = without_rows(mesh_.rest(), num_parts, job.arguments.ghost_layers);
    like.cells.num_global = mesh_.num_cells();
    for (std::int32_t first = 0; first < num_parts; first += messages_.size()) {
        const auto part = first + messages_.rank();
        const auto subdomain = next_part(like, first, part < num_parts ? part : -1);
        mesh_.release_pages();
        if (part < num_parts) sink.take(subdomain);
        trim_memory();
    }
}

void WindowSteps::dump(CutJob& job, const std::filesystem::path& folder)
{
    const auto kinds = dump_kinds(job.arguments);
    if (kinds.empty()) return;
    const auto num_rows = mesh_.num_rows();
    std::optional<PartitionDump> dump;
    if (messages_.rank() == 0)
        dump.emplace(folder, kinds, num_rows, cut_->num_graph_entries(), job.arguments.num_parts);
    for (std::int64_t begin = 0; begin < num_rows; begin += sizes_.dumped_cells) {
        const auto end = std::min(begin + sizes_.dumped_cells, num_rows);
        const auto neighbors = PartitionDump::needs_graph(kinds) ? cut_->neighbors_in_file(begin, end) : Csr{};
        const auto owners = cut_->owners_in_file(begin, end);
        if (dump) dump->add(neighbors, owners);
        trim_memory();
    }
    if (dump) dump->commit();
}

// Each rank first measures the bounds of its windows, then draws them into its own picture; rank 0 combines the
// pictures.
void WindowSteps::draw(CutJob&, const std::filesystem::path& png)
{
    RenderOptions options;
    options.color_by = "PartitionId";
    PicturePainter painter(options);
    PictureGlance mine, all;
    const auto each_piece = [&](auto&& work) {
        for (std::int32_t round = 0; round < windows_->num_rounds(); ++round)
            if (const Mesh piece = drawn_piece(round); piece.num_points() > 0) work(piece);
    };
    each_piece([&](const Mesh& piece) {
        const auto glance = painter.look(piece);
        mine.join(glance.numbers);
        mine.join(glance.seen);
    });
    for (const auto& numbers : gather_everywhere(messages_, std::vector{mine.numbers})) all.join(numbers);
    all.join(gather_everywhere(messages_, mine.seen));
    painter.begin(all);
    each_piece([&](const Mesh& piece) { painter.draw(piece); });
    for (int r = 1; r < messages_.size(); ++r) {
        std::vector<RankMessages::Bytes> to(messages_.size());
        if (messages_.rank() == r) to[0] = painter.layer();
        const auto received = messages_.exchange(std::move(to));
        if (messages_.rank() == 0) painter.add_layer(received[r]);
    }
    if (messages_.rank() == 0) painter.save(png);
}

// Returns the visible part of one window: the outer faces of its cells as triangles, or points of cells without faces,
// each with its part. Faces between windows are not outer: the neighbour cells of other windows are fetched to find
// them. Collective.
Mesh WindowSteps::drawn_piece(std::int32_t round) const
{
    const auto window = windows_->window_in_round(messages_.rank(), round);
    const auto graph = window >= 0 ? windows_->graph(window) : WindowGraph{};
    const auto outside = fetch<std::int32_t>(messages_, windows_->positions(), windows_->ids(), graph.outside);
    Mesh piece;
    piece.kind = MeshKind::Surface;
    if (window < 0) return piece;
    const auto here = windows_->ids(window);
    const auto owners = cut_->owners(window);
    if (mesh_.is_point_cloud()) {
        piece.points = mesh_.rest().points.gather(here);
        piece.point_data.push_back(
            DataArray::from("PartitionId", std::vector<std::int32_t>(owners.begin(), owners.end())));
        mesh_.release_pages();
        return piece;
    }
    std::vector<std::int32_t> ids(here.begin(), here.end()), owners_of_cells;
    append(ids, outside);
    Mesh cells = mesh_.cells(ids);
    // The array marks ghost cells, which are not drawn.
    if (const auto* ghosts = find_array(mesh_.rest().cell_data, "vtkGhostType"))
        cells.cell_data.push_back(ghosts->gather(ids));
    const auto add = [&](std::span<const std::int32_t> points, std::uint8_t type, std::int32_t cell) {
        piece.cells.push_row(points);
        piece.cell_types.push_back(type);
        owners_of_cells.push_back(owners[cell]);
    };
    constexpr std::uint8_t vertex = 1, triangle = 5;
    const auto num_here = static_cast<std::int32_t>(here.size());
    for (const auto& face : outer_surface(cells))
        if (face.cell < num_here) add(face.points, triangle, face.cell);
    if (piece.num_cells() == 0)
        for (std::int32_t cell = 0; cell < num_here; ++cell) {
            if (cell_dimension(cells.cell_types[cell]) > 1) continue;
            for (const auto& point : cells.cells.row(cell)) add({&point, 1}, vertex, cell);
        }
    auto points = piece.cells.indices;
    sort_unique(points);
    for (auto& point : piece.cells.indices)
        point = static_cast<std::int32_t>(std::ranges::lower_bound(points, point) - points.begin());
    piece.points = mesh_.rest().points.gather(points);
    piece.cell_data.push_back(DataArray::from("PartitionId", owners_of_cells));
    mesh_.release_pages();
    return piece;
}

std::vector<std::pair<std::string, std::string>> WindowSteps::options() const
{
    return {{"cells_a_window", std::to_string(sizes_.cells_a_window)}};
}

// Returns this rank's `part`: all ranks find the parts first, first + 1, ... together, one for each rank. `part` is -1
// if there is none for this rank. Collective.
Subdomain WindowSteps::next_part(const Subdomain& like, std::int32_t first, std::int32_t part) const
{
    const auto rows = cut_->rows_of_parts(first);
    const bool is_cloud = mesh_.is_point_cloud();
    Subdomain result = like;
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
        for (std::size_t i = 0; i < mesh_.rest().point_data.size(); ++i)
            result.mesh.point_data[i] = mesh_.rest().point_data[i].gather(ids);
        return result;
    }
    Mesh mesh = mesh_.cells(ids);

    auto points = mesh.cells.indices;
    append(points, rows.unused_points);
    sort_unique(points);
    const auto owners = cut_->owners_of_points(points);
    if (part < 0) return result;
    std::vector<std::int32_t> order;  // local row -> index in `points`
    for (std::size_t i = 0; i < points.size(); ++i)
        if (owners[i] == part) order.push_back(static_cast<std::int32_t>(i));
    result.points.num_owned = static_cast<std::int32_t>(order.size());
    for (std::size_t i = 0; i < points.size(); ++i)
        if (owners[i] != part) order.push_back(static_cast<std::int32_t>(i));
    std::stable_sort(order.begin() + result.points.num_owned, order.end(),
                     [&](auto a, auto b) { return owners[a] < owners[b]; });
    std::vector<std::int32_t> local(points.size()), rows_of_points;
    for (std::size_t row = 0; row < order.size(); ++row) {
        local[order[row]] = static_cast<std::int32_t>(row);
        rows_of_points.push_back(points[order[row]]);
        result.points.global_ids.push_back(points[order[row]]);
        if (static_cast<std::int32_t>(row) >= result.points.num_owned)
            result.points.ghost_owners.push_back(owners[order[row]]);
    }
    const auto to_local = [&](std::int32_t& point) {
        point = local[std::ranges::lower_bound(points, point) - points.begin()];
    };
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

}  // namespace meshard
