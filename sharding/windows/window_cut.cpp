// SPDX-License-Identifier: Apache-2.0
#include "sharding/windows/window_cut.h"

#include "partition/cut/balance.h"
#include "partition/cut/boundary_search.h"
#include "partition/lists.h"
#include "sharding/windows/graph_ghosts.h"
#include "sharding/windows/piece_counter.h"
#include "sharding/windows/radius_ghosts.h"
#include "sharding/windows/window_weights.h"

#include <algorithm>
#include <iterator>
#include <numeric>

namespace meshard {

namespace {

struct EdgeCount {
    std::int32_t from, to;
    std::int64_t count;
};

struct OwnedCell {
    std::int32_t id, owner;
};

// The parts of a cut edge.
struct PartPair {
    std::int32_t from, to;

    auto operator<=>(const PartPair&) const = default;
};

}  // namespace

WindowCut::WindowCut(const CurveWindows& windows, RankMessages& messages, const WindowCutOptions& options)
    : windows_(windows), messages_(messages), options_(options), num_cells_(windows.positions().begins.back())
{
    if (!options.weights.empty()) {
        num_weights_ = static_cast<std::int32_t>(options.weights.size());
        weights_ = window_weights(windows, messages, options.weights);
    }
    if (options.given != nullptr) {
        take_given();
        if (options.repair_given) owners_ = cut_blocks(windows, messages, options, weights_, num_weights_, owners_);
    } else if (options.method == "hilbert" && !options.contiguous && options.levels.empty()) {
        cut_along_curve();
        if (exceeds_bounds()) owners_ = cut_blocks(windows, messages, options, weights_, num_weights_, owners_);
    } else {
        owners_ = cut_blocks(windows, messages, options, weights_, num_weights_);
    }
}

void WindowCut::take_given()
{
    owners_.reserve(windows_.ids().size());
    for (std::int32_t round = 0; round < windows_.num_rounds(); ++round) {
        const auto window = windows_.window_in_round(messages_.rank(), round);
        const auto ids = window >= 0 ? windows_.ids(window) : std::span<const std::int32_t>{};
        const auto found = fetch<std::int32_t>(messages_, windows_.cells(), *options_.given, ids);
        append(owners_, found);
    }
}

// The same cut as `partition_by_curve`: with several weights, the weight of a cell is the mean of its shares of their
// totals.
void WindowCut::cut_along_curve()
{
    std::vector<std::int64_t> sums(num_weights_, 0);
    for (std::size_t at = 0; at < weights_.size(); ++at) sums[at % num_weights_] += weights_[at];
    sums = sum_everywhere(messages_, sums);
    if (weights_.empty()) sums = {num_cells_};
    const auto num_used = std::ranges::count_if(sums, [](auto sum) { return sum > 0; });
    const auto weight_of = [&](std::int64_t index) {
        if (num_weights_ == 1 || num_used == 0)
            return weights_.empty() || num_used == 0 ? 1.0 : static_cast<double>(weights_[index]);
        double share = 0;
        for (std::int32_t w = 0; w < num_weights_; ++w)
            if (sums[w] > 0)
                share +=
                    weights_[index * num_weights_ + w] / (static_cast<double>(sums[w]) * static_cast<double>(num_used));
        return share;
    };
    owners_.assign(windows_.ids().size(), 0);
    const auto begin = windows_.positions().begin(messages_.rank());
    std::vector<double> totals;  // weight of each window
    for (auto window = windows_.first_window(); window < windows_.end_window(); ++window) {
        totals.push_back(0);
        for (std::int64_t i = 0; i < windows_.size(window); ++i)
            totals.back() += weight_of(windows_.begin(window) - begin + i);
    }
    totals = gather_everywhere(messages_, totals);
    std::vector<double> before{0};  // sum of the capacities of the parts before each part
    for (std::int32_t part = 0; part < options_.num_parts; ++part)
        before.push_back(before.back() + (options_.capacities.empty() ? 1 : options_.capacities[part]));
    const auto total = std::accumulate(totals.begin(), totals.end(), 0.0);
    for (auto window = windows_.first_window(); window < windows_.end_window(); ++window) {
        // Each window begins anew with the sum of those before, so that rounding does not depend on the ranks.
        std::int32_t part = 0;
        auto sum = std::accumulate(totals.begin(), totals.begin() + window, 0.0);
        const auto first = windows_.begin(window) - begin;
        for (auto i = first; i < first + windows_.size(window); ++i) {
            const auto weight = weight_of(i);
            while (part + 1 < options_.num_parts && (sum + 0.5 * weight) * before.back() > before[part + 1] * total)
                ++part;
            owners_[i] = part;
            sum += weight;
        }
    }
}

std::span<std::int32_t> WindowCut::owners_in(std::int32_t window)
{
    return std::span(owners_).subspan(windows_.begin(window) - windows_.positions().begin(messages_.rank()),
                                      windows_.size(window));
}

std::vector<std::int64_t> WindowCut::part_sizes() const
{
    std::vector<std::int64_t> sizes(options_.num_parts, 0);
    for (const auto owner : owners_) ++sizes[owner];
    return sum_everywhere(messages_, sizes);
}

std::vector<std::int32_t> WindowCut::part_weights() const
{
    std::vector<std::int64_t> sums(static_cast<std::size_t>(options_.num_parts) * num_weights_, 0);
    for (std::size_t i = 0; i < owners_.size(); ++i)
        for (std::int32_t w = 0; w < num_weights_; ++w)
            sums[std::int64_t{owners_[i]} * num_weights_ + w] += weights_.empty() ? 1 : weights_[i * num_weights_ + w];
    sums = sum_everywhere(messages_, sums);
    return {sums.begin(), sums.end()};
}

BalanceTarget WindowCut::balance_of(std::span<const std::int32_t> part_weights) const
{
    return {.imbalance = options_.imbalance,
            .num_weights = num_weights_,
            .row_weights = part_weights,
            .capacities = options_.capacities};
}

bool WindowCut::exceeds_bounds() const
{
    const auto sizes = part_sizes();
    if (num_cells_ >= options_.num_parts && std::ranges::count(sizes, 0) > 0) return true;
    if (options_.weights.empty() && options_.capacities.empty())
        return std::ranges::max(sizes) > largest_part_allowed(num_cells_, options_.num_parts, options_.imbalance);
    const auto weights = part_weights();
    const auto most = largest_weights_allowed(options_.num_parts, options_.num_parts, balance_of(weights));
    return !std::ranges::equal(weights, most, std::less_equal());
}

std::vector<double> WindowCut::imbalances() const
{
    Partition itself{options_.num_parts, std::vector<std::int32_t>(options_.num_parts)};
    std::iota(itself.owners.begin(), itself.owners.end(), 0);
    const auto weights = part_weights();
    return meshard::imbalances(itself, balance_of(weights));
}

std::span<const std::int32_t> WindowCut::weights_in(std::int32_t window) const
{
    if (weights_.empty()) return {};
    return std::span(weights_).subspan((windows_.begin(window) - windows_.positions().begin(messages_.rank())) *
                                           num_weights_,
                                       windows_.size(window) * num_weights_);
}

WindowCut::Surroundings WindowCut::window_of_round(std::int32_t round) const
{
    const auto window = windows_.window_in_round(messages_.rank(), round);
    const bool is_here = window >= 0;
    auto graph = is_here ? windows_.graph(window) : WindowGraph{};
    auto outside = fetch<std::int32_t>(messages_, windows_.positions(), owners_, graph.outside);
    return {window, is_here, std::move(graph), std::move(outside)};
}

void WindowCut::refine()
{
    const auto sums = part_weights();
    const auto most = largest_weights_allowed(options_.num_parts, options_.num_parts, balance_of(sums));
    std::vector<std::int64_t> num_present(options_.num_parts, 0);  // number of windows in which each part has cells
    for (auto window = windows_.first_window(); window < windows_.end_window(); ++window) {
        std::vector<bool> is_present(options_.num_parts, false);
        for (const auto owner : owners_in(window)) is_present[owner] = true;
        for (std::int32_t part = 0; part < options_.num_parts; ++part) num_present[part] += is_present[part];
    }
    num_present = sum_everywhere(messages_, num_present);

    for (std::int32_t round = 0; round < windows_.num_rounds(); ++round) {
        const auto [window, is_here, graph, outside] = window_of_round(round);
        if (!is_here) continue;
        const auto kept = owners_in(window);
        std::vector<std::int32_t> owners(kept.begin(), kept.end());
        append(owners, outside);
        std::vector<std::uint8_t> is_fixed(owners.size(), 1);
        std::fill_n(is_fixed.begin(), graph.num_cells, std::uint8_t{0});
        for (const auto& crossing : windows_.crossings(window)) is_fixed[crossing.here - windows_.begin(window)] = 1;
        // Cells outside the window have weight 0: they do not move.
        const auto known = weights_in(window);
        std::vector<std::int32_t> weights(known.begin(), known.end());
        if (known.empty()) weights.assign(graph.num_cells, 1);
        weights.resize(owners.size() * num_weights_, 0);
        std::vector<std::int64_t> most_here(most.size(), 0);
        for (std::size_t at = 0; at < weights.size(); ++at)
            most_here[std::int64_t{owners[at / num_weights_]} * num_weights_ + at % num_weights_] += weights[at];
        for (std::size_t at = 0; at < most.size(); ++at)
            if (const auto present = num_present[at / num_weights_]; present > 0)
                most_here[at] += std::max<std::int64_t>(0, most[at] - sums[at]) / present;

        const double work = options_.thorough ? 12 : 3;  // largest work for each row and entry
        BoundarySearch search(graph.graph, owners, options_.num_parts,
                              {.num_weights = num_weights_, .row_weights = weights, .most_weight = most_here},
                              {.ghost_share = options_.ghost_share,
                               .patience = options_.thorough ? 120 : 40,
                               .num_rounds = options_.thorough ? 30 : 10,
                               .least_gain = options_.thorough ? 0.0002 : 0.001,
                               .most_work = static_cast<std::int64_t>(
                                   work * static_cast<double>(graph.graph.num_rows() + graph.graph.num_entries())),
                               .keep_connected = options_.contiguous,
                               .seed = options_.seed * 1000 + static_cast<std::uint64_t>(window),
                               .is_fixed = is_fixed});
        const auto cut_before = search.cut();
        search.run();
        if (search.cut() <= cut_before) std::copy_n(owners.begin(), graph.num_cells, kept.begin());
    }
}

void WindowCut::number_along_curve()
{
    // Parts with different capacities, parts on nodes and those of a given partition keep their numbers.
    if (!options_.capacities.empty() || !options_.levels.empty() || options_.given != nullptr) return;
    const auto begin = windows_.positions().begin(messages_.rank());
    std::vector<std::int64_t> sums(options_.num_parts, 0);
    for (std::size_t i = 0; i < owners_.size(); ++i) sums[owners_[i]] += begin + static_cast<std::int64_t>(i);
    sums = sum_everywhere(messages_, sums);
    const auto sizes = part_sizes();
    std::vector<std::int32_t> order(options_.num_parts), number(options_.num_parts);
    std::iota(order.begin(), order.end(), 0);
    const auto mean_position = [&](std::int32_t part) {
        return sizes[part] > 0 ? static_cast<double>(sums[part]) / static_cast<double>(sizes[part])
                               : static_cast<double>(num_cells_);
    };
    std::ranges::stable_sort(order, {}, mean_position);
    for (std::int32_t i = 0; i < options_.num_parts; ++i) number[order[i]] = i;
    for (auto& owner : owners_) owner = number[owner];
}

std::int64_t WindowCut::count_isolated(std::int32_t window, const WindowGraph& graph) const
{
    std::vector<std::int32_t> isolated;
    for (std::int32_t cell = 0; cell < graph.num_cells; ++cell)
        if (graph.graph.row(cell).empty()) isolated.push_back(windows_.ids(window)[cell]);
    if (isolated.empty() || windows_.is_point_cloud()) return 0;
    const auto types = windows_.mesh().cells(isolated).cell_types;
    windows_.mesh().release_pages();
    return std::ranges::count_if(types, [](std::uint8_t type) { return cell_dimension(type) >= 2; });
}

PartitionQuality WindowCut::find_ghosts(std::int32_t num_layers, const GhostRule& rule)
{
    const auto neighbors = rule.neighbors;
    // A cloud has no edges and vertices.
    const bool by_points =
        (neighbors == GhostNeighbors::Edge || neighbors == GhostNeighbors::Vertex) && !windows_.is_point_cloud();
    const bool by_graph = !by_points && neighbors != GhostNeighbors::Radius && neighbors != GhostNeighbors::Nearest;
    const auto num_parts = options_.num_parts;
    std::vector<EdgeCount> edges;
    std::vector<std::int64_t> num_ghosts(num_parts, 0);
    PieceCounter pieces;
    marks_.clear();
    num_graph_entries_ = num_isolated_ = 0;
    for (std::int32_t round = 0; round < windows_.num_rounds(); ++round) {
        const auto [window, is_here, graph, outside] = window_of_round(round);
        if (!is_here) continue;
        const auto owners = owners_in(window);
        num_graph_entries_ += graph.graph.offsets[graph.num_cells];
        pieces.add_window(graph, windows_.begin(window), owners, outside);
        num_isolated_ += count_isolated(window, graph);
        std::vector<PartPair> pairs;
        for (std::int32_t cell = 0; cell < graph.num_cells; ++cell)
            for (const auto neighbor : graph.graph.row(cell)) {
                const auto owner = neighbor < graph.num_cells ? owners[neighbor] : outside[neighbor - graph.num_cells];
                if (owner != owners[cell]) pairs.push_back({owners[cell], owner});
            }
        const auto num_before = marks_.size();
        add_first_ghosts(graph, windows_.begin(window), owners, outside, marks_);
        for (auto i = num_before; i < marks_.size(); ++i) ++num_ghosts[marks_[i].part];
        if (num_layers == 0 || !by_graph) marks_.clear();
        std::ranges::sort(pairs);
        for (std::size_t i = 0, next = 0; i < pairs.size(); i = next) {
            while (next < pairs.size() && pairs[next] == pairs[i]) ++next;
            edges.push_back({pairs[i].from, pairs[i].to, static_cast<std::int64_t>(next - i)});
        }
    }
    if (num_layers == 0)
        marks_.clear();
    else if (by_graph)
        spread_ghosts(
            windows_, messages_, [&](std::int32_t window) { return windows_.graph(window); }, owners_, num_layers,
            marks_);
    else if (by_points)
        marks_ = ghosts_by_points_or_edges(windows_, messages_, owners_, neighbors, num_layers);
    else if (neighbors == GhostNeighbors::Radius)
        marks_ = ghosts_by_radius(windows_, messages_, owners_, rule.radius, num_layers);
    else
        marks_ = ghosts_by_nearest(windows_, messages_, owners_, rule.num_nearest, num_layers);
    std::ranges::sort(marks_, {}, &GhostMark::part);

    PartitionQuality quality;
    quality.parts.resize(num_parts);
    const auto sizes = part_sizes();
    const auto num_pieces = pieces.count(messages_, windows_.positions(), num_parts);
    num_ghosts = sum_everywhere(messages_, num_ghosts);
    num_graph_entries_ = sum_everywhere(messages_, std::vector{num_graph_entries_}).front();
    num_isolated_ = num_cells_ == 1 ? 0 : sum_everywhere(messages_, std::vector{num_isolated_}).front();
    quality.imbalance = static_cast<double>(std::ranges::max(sizes)) * num_parts / static_cast<double>(num_cells_);
    for (std::int32_t part = 0; part < num_parts; ++part) {
        quality.parts[part].num_owned = sizes[part];
        quality.parts[part].num_ghosts = num_ghosts[part];
        quality.parts[part].num_components = num_pieces[part];
        quality.communication_volume += num_ghosts[part];
    }
    auto all = gather_on_first(messages_, std::move(edges));
    std::ranges::sort(all, {}, [](const EdgeCount& edge) { return PartPair{edge.from, edge.to}; });
    for (const auto& edge : all) {
        auto& part = quality.parts[edge.from];
        if (part.neighbors.empty() || part.neighbors.back() != edge.to) {
            part.neighbors.push_back(edge.to);
            part.neighbor_edges.push_back(0);
        }
        part.neighbor_edges.back() += edge.count;
        part.cut_edges += edge.count;
        quality.edge_cut += edge.count;
    }
    quality.edge_cut /= 2;  // each edge was counted from both ends
    return quality;
}

// Sends owners to the ranks of the cells' numbers in the file.
void WindowCut::settle_cells()
{
    const auto rank = messages_.rank();
    owners_by_id_.assign(windows_.cells().size(rank), 0);
    for (std::int32_t round = 0; round < windows_.num_rounds(); ++round) {
        const auto window = windows_.first_window() + round;
        std::vector<std::vector<OwnedCell>> to(messages_.size());
        if (window < windows_.end_window()) {
            const auto ids = windows_.ids(window);
            const auto owners = owners_in(window);
            for (std::size_t i = 0; i < ids.size(); ++i)
                to[windows_.cells().rank_of(ids[i])].push_back({ids[i], owners[i]});
        }
        for (const auto& part : exchange(messages_, std::move(to)))
            for (const auto& cell : part) owners_by_id_[cell.id - windows_.cells().begin(rank)] = cell.owner;
    }
}

void WindowCut::settle_points(std::vector<std::int32_t> first_cells)
{
    settle_cells();
    if (windows_.is_point_cloud()) return;  // the points are the rows
    constexpr std::int64_t run = std::int64_t{1} << 20;
    const auto rank = messages_.rank();
    point_owners_ = std::move(first_cells);
    std::int64_t longest = 0;
    for (int r = 0; r < messages_.size(); ++r) longest = std::max(longest, windows_.points().size(r));
    for (std::int64_t done = 0; done < longest; done += run) {
        const auto begin = std::min<std::int64_t>(done, windows_.points().size(rank));
        const auto end = std::min<std::int64_t>(done + run, windows_.points().size(rank));
        std::vector<std::int32_t> cells;
        for (auto i = begin; i < end; ++i)
            if (point_owners_[i] >= 0) cells.push_back(point_owners_[i]);
        const auto owners = fetch<std::int32_t>(messages_, windows_.cells(), owners_by_id_, cells);
        std::size_t next = 0;
        for (auto i = begin; i < end; ++i) {
            const bool is_used = point_owners_[i] >= 0;
            if (!is_used) unused_points_.push_back(static_cast<std::int32_t>(windows_.points().begin(rank) + i));
            point_owners_[i] = is_used ? owners[next++] : 0;
        }
    }
}

RowsOfPart WindowCut::rows_of_parts(std::int32_t first_part) const
{
    const auto rank = messages_.rank();
    const auto num_asked = std::min(messages_.size(), options_.num_parts - first_part);
    std::vector<std::vector<std::int32_t>> owned(messages_.size());
    const auto first_id = static_cast<std::int32_t>(windows_.cells().begin(rank));
    for (std::size_t i = 0; i < owners_by_id_.size(); ++i)
        if (const auto turn = owners_by_id_[i] - first_part; turn >= 0 && turn < num_asked)
            owned[turn].push_back(first_id + static_cast<std::int32_t>(i));
    std::vector<std::vector<GhostRow>> ghosts(messages_.size());
    const auto begin = windows_.positions().begin(rank);
    for (auto mark = std::ranges::lower_bound(marks_, first_part, {}, &GhostMark::part);
         mark != marks_.end() && mark->part < first_part + num_asked; ++mark)
        ghosts[mark->part - first_part].push_back(
            {owners_[mark->position - begin], windows_.ids()[mark->position - begin], mark->level});
    std::vector<std::vector<std::int32_t>> unused(messages_.size());
    if (first_part == 0) unused[0] = unused_points_;

    RowsOfPart rows;
    for (const auto& part : exchange(messages_, std::move(owned))) append(rows.owned, part);
    for (const auto& part : exchange(messages_, std::move(ghosts))) append(rows.ghosts, part);
    for (const auto& part : exchange(messages_, std::move(unused))) append(rows.unused_points, part);
    std::ranges::sort(rows.ghosts);
    return rows;
}

Csr WindowCut::neighbors_in_file(std::int64_t begin, std::int64_t end) const
{
    // `cells` and `degrees` of this rank's rows, and in `found` their neighbours, concatenated.
    std::vector<std::int32_t> cells, degrees, found;
    for (std::int32_t round = 0; round < windows_.num_rounds(); ++round) {
        const auto window = windows_.window_in_round(messages_.rank(), round);
        const auto ids = window >= 0 ? windows_.ids(window) : std::span<const std::int32_t>{};
        const auto graph = window >= 0 ? windows_.graph(window) : WindowGraph{};
        const auto outside = fetch<std::int32_t>(messages_, windows_.positions(), windows_.ids(), graph.outside);
        for (std::int32_t cell = 0; cell < graph.num_cells; ++cell) {
            if (ids[cell] < begin || ids[cell] >= end) continue;
            const auto row = graph.graph.row(cell);
            cells.push_back(ids[cell]);
            degrees.push_back(static_cast<std::int32_t>(row.size()));
            for (const auto neighbor : row)
                found.push_back(neighbor < graph.num_cells ? ids[neighbor] : outside[neighbor - graph.num_cells]);
        }
    }
    cells = gather_on_first(messages_, std::move(cells));
    degrees = gather_on_first(messages_, std::move(degrees));
    found = gather_on_first(messages_, std::move(found));
    Csr rows;
    if (messages_.rank() != 0) return rows;
    rows.offsets.assign(end - begin + 1, 0);
    for (std::size_t i = 0; i < cells.size(); ++i) rows.offsets[cells[i] - begin + 1] = degrees[i];
    std::partial_sum(rows.offsets.begin(), rows.offsets.end(), rows.offsets.begin());
    rows.indices.resize(found.size());
    auto next = found.begin();
    for (std::size_t i = 0; i < cells.size(); ++i) {
        const auto row = rows.indices.begin() + rows.offsets[cells[i] - begin];
        std::copy_n(next, degrees[i], row);
        std::sort(row, row + degrees[i]);
        next += degrees[i];
    }
    return rows;
}

std::vector<std::int32_t> WindowCut::owners_in_file(std::int64_t begin, std::int64_t end) const
{
    const auto first = windows_.cells().begin(messages_.rank()), last = windows_.cells().begin(messages_.rank() + 1);
    std::vector<std::int32_t> mine;
    for (auto cell = std::max(begin, first); cell < std::min(end, last); ++cell)
        mine.push_back(owners_by_id_[cell - first]);
    return gather_on_first(messages_, std::move(mine));
}

std::vector<std::int32_t> WindowCut::owners_of_points(std::span<const std::int32_t> points) const
{
    return fetch<std::int32_t>(messages_, windows_.points(), windows_.is_point_cloud() ? owners_by_id_ : point_owners_,
                               points);
}

}  // namespace meshard
