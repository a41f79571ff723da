// SPDX-License-Identifier: Apache-2.0
#include "sharding/windows/curve_windows.h"

#include "partition/cut/curve_order.h"
#include "partition/cut/geometric_partitioner.h"
#include "partition/error.h"
#include "partition/lists.h"
#include "sharding/windows/duplicate_cells.h"
#include "sharding/windows/nearest_graph.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>

namespace meshard {

namespace {

constexpr std::int64_t cells_a_chunk = std::int64_t{1} << 16;

struct PointUse {
    std::int32_t point, cell;
};

// Points that the cells use, each once. `seen` is scratch memory: all false, before and after.
std::vector<std::int32_t> points_of(const Mesh& cells, std::vector<bool>& seen)
{
    std::vector<std::int32_t> points;
    for (const auto point : cells.cells.indices) {
        if (seen[point]) continue;
        seen[point] = true;
        points.push_back(point);
    }
    for (const auto point : points) seen[point] = false;
    return points;
}

// Throws BadCell errors of `work` with the cell's number in the file instead of its index in the window.
template <class F>
auto with_numbers_in_file(std::span<const std::int32_t> ids, F&& work)
{
    try {
        return work();
    } catch (const BadCell& error) {
        throw error.with_number(ids[error.cell()]);
    }
}

void add(std::int64_t& number, std::int64_t& first, std::int64_t more, std::int64_t first_of_more)
{
    number += more;
    if (more > 0 && (first < 0 || first_of_more < first)) first = first_of_more;
}

// A facet that cells of other windows may share.
struct BorderFacet {
    SharedFacet facet;  // its `cell` is the number in the file
    std::int32_t position;
    std::uint8_t cell_type;

    auto operator<=>(const BorderFacet&) const = default;
};

int home_of(const SharedFacet& facet, int num_ranks)
{
    std::uint64_t hash = 0;
    for (const auto word : facet.key) hash = (hash ^ static_cast<std::uint32_t>(word)) * 0x9e3779b97f4a7c15u;
    return static_cast<int>((hash >> 33) % static_cast<std::uint64_t>(num_ranks));
}

}  // namespace

CurveWindows::CurveWindows(const StoredMesh& mesh, RankMessages& messages, std::int64_t cells_a_window,
                           std::int64_t cache_bytes)
    : mesh_(mesh), messages_(messages), cells_(RankRanges::even(mesh.num_rows(), messages.size())),
      points_(RankRanges::even(mesh.num_points(), messages.size())), cache_left_(cache_bytes)
{
    find_box();
    const auto num_windows = std::max<std::int64_t>(1, (cells_.begins.back() + cells_a_window - 1) / cells_a_window);
    deal_cells(find_splitters(num_windows));
    cache_.resize(end_window() - first_window());
    if (!is_point_cloud()) find_crossings(find_shared_points());
    if (rows_are_points_) find_nearest();
}

CurveWindows::~CurveWindows() = default;

std::int32_t CurveWindows::window_of(std::int64_t position) const
{
    return static_cast<std::int32_t>(std::ranges::upper_bound(begins_, position) - begins_.begin()) - 1;
}

std::int32_t CurveWindows::num_rounds() const
{
    std::int32_t most = 0;
    for (int r = 0; r < messages_.size(); ++r) most = std::max(most, first_window_of(r + 1) - first_window_of(r));
    return most;
}

std::span<const std::int32_t> CurveWindows::ids(std::int32_t window) const
{
    return std::span(ids_).subspan(begin(window) - positions_.begin(messages_.rank()), size(window));
}

void CurveWindows::find_box()
{
    constexpr double infinity = std::numeric_limits<double>::infinity();
    // Minima of the coordinates, then of their negatives.
    std::vector<double> box{infinity, infinity, infinity, infinity, infinity, infinity};
    std::int64_t num_bad = 0;
    const auto rank = messages_.rank();
    with_scalar_type(mesh_.rest().points.type(), [&]<class T>() {
        const auto values = mesh_.rest().points.values<T>();
        for (auto i = 3 * points_.begin(rank); i < 3 * points_.begin(rank + 1); ++i) {
            const auto value = static_cast<double>(values[i]);
            if (!std::isfinite(value)) ++num_bad;
            box[i % 3] = std::min(box[i % 3], value);
            box[3 + i % 3] = std::min(box[3 + i % 3], -value);
        }
    });
    mesh_.release_pages();
    num_bad = sum_everywhere(messages_, std::vector{num_bad}).front();
    if (num_bad > 0)
        throw InvalidInput("the mesh has {}{} NaN or infinite; every point needs a position. Repair the mesh.", num_bad,
                           num_bad == 1 ? " coordinate that is" : " coordinates that are");
    const auto boxes = gather_everywhere(messages_, box);
    for (std::size_t i = 0; i < boxes.size(); ++i) box[i % 6] = std::min(box[i % 6], boxes[i]);
    double longest = 0;
    for (int d = 0; d < 3; ++d) {
        low_[d] = box[d];
        longest = std::max(longest, -box[3 + d] - box[d]);
    }
    scale_ = longest > 0 ? 1 / longest : 0;
}

// Hilbert indices of the mean points of cells, or of points for a cloud, where `cells` is empty.
std::vector<CurveWindows::OnCurve> CurveWindows::places(std::span<const std::int32_t> ids, const Mesh& cells) const
{
    std::vector<OnCurve> found(ids.size());
    with_scalar_type(mesh_.rest().points.type(), [&]<class T>() {
        const auto points = mesh_.rest().points.values<T>();
        for (std::size_t i = 0; i < ids.size(); ++i) {
            const auto corners = is_point_cloud() ? ids.subspan(i, 1) : cells.cells.row(static_cast<std::int64_t>(i));
            std::array<double, 3> unit{};
            for (const auto point : corners)
                for (int d = 0; d < 3; ++d) unit[d] += static_cast<double>(points[3 * std::int64_t{point} + d]);
            for (int d = 0; d < 3 && !corners.empty(); ++d)
                unit[d] = (unit[d] / static_cast<double>(corners.size()) - low_[d]) * scale_;
            found[i] = {hilbert_index(unit), ids[i]};
        }
    });
    return found;
}

// Windows end at the quantiles of a sample that does not depend on the number of ranks.
std::vector<CurveWindows::OnCurve> CurveWindows::find_splitters(std::int64_t num_windows) const
{
    constexpr std::int64_t samples_a_window = 256;
    const auto stride = std::max<std::int64_t>(1, cells_.begins.back() / (num_windows * samples_a_window));
    std::vector<std::int32_t> ids;
    const auto rank = messages_.rank();
    for (auto id = (cells_.begin(rank) + stride - 1) / stride * stride; num_windows > 1 && id < cells_.begin(rank + 1);
         id += stride)
        ids.push_back(static_cast<std::int32_t>(id));
    auto samples = gather_everywhere(messages_, places(ids, is_point_cloud() ? Mesh{} : mesh_.cells(ids)));
    std::ranges::sort(samples);
    std::vector<OnCurve> splitters;
    for (std::int64_t w = 1; w < num_windows; ++w) splitters.push_back(samples[samples.size() * w / num_windows]);
    mesh_.release_pages();
    return splitters;
}

void CurveWindows::deal_cells(const std::vector<OnCurve>& splitters)
{
    const auto rank = messages_.rank();
    const auto num_ranks = messages_.size();
    const auto num_windows = std::ssize(splitters) + 1;
    begins_.assign(num_windows + 1, 0);  // gives `num_windows()` its value
    std::vector<int> rank_of_window(num_windows);
    for (int r = 0; r < num_ranks; ++r)
        std::fill(rank_of_window.begin() + first_window_of(r), rank_of_window.begin() + first_window_of(r + 1), r);

    if (!is_point_cloud()) first_cells_.assign(points_.size(rank), std::numeric_limits<std::int32_t>::max());
    std::vector<std::vector<OnCurve>> dealt(num_ranks);
    if (num_ranks == 1) dealt[0].reserve(cells_.begins.back());
    std::vector<std::uint8_t> types(256, 0);
    std::int64_t longest = 0;
    for (int r = 0; r < num_ranks; ++r) longest = std::max(longest, cells_.size(r));
    for (std::int64_t done = 0; done < longest; done += cells_a_chunk) {
        const auto begin = std::min(cells_.begin(rank) + done, cells_.begin(rank + 1));
        auto ids = numbers_from<std::int32_t>(static_cast<std::int32_t>(begin),
                                              std::min(begin + cells_a_chunk, cells_.begin(rank + 1)) - begin);
        const Mesh cells = is_point_cloud() ? Mesh{} : mesh_.cells(ids);
        for (const auto type : cells.cell_types) types[type] = 1;
        for (const auto& place : places(ids, cells))
            dealt[rank_of_window[std::ranges::upper_bound(splitters, place) - splitters.begin()]].push_back(place);
        std::vector<std::vector<PointUse>> uses(num_ranks);
        for (std::int64_t i = 0; i < cells.num_cells(); ++i)
            for (const auto point : cells.cells.row(i)) uses[points_.rank_of(point)].push_back({point, ids[i]});
        for (const auto& part : exchange(messages_, std::move(uses)))
            for (const auto& use : part) {
                auto& first = first_cells_[use.point - points_.begin(rank)];
                first = std::min(first, use.cell);
            }
        mesh_.release_pages();
    }
    for (auto& cell : first_cells_)
        if (cell == std::numeric_limits<std::int32_t>::max()) cell = -1;
    std::vector<std::uint8_t> used_types;
    const auto seen = sum_everywhere(messages_, std::vector<std::int32_t>(types.begin(), types.end()));
    for (int type = 0; type < 256; ++type)
        if (seen[type] > 0) used_types.push_back(static_cast<std::uint8_t>(type));
    rows_are_points_ = used_types.empty() || used_types == std::vector<std::uint8_t>{1};
    dimensions_ = dimensions_of(used_types);

    auto received = exchange(messages_, std::move(dealt));
    auto mine = std::move(received[0]);
    for (std::size_t r = 1; r < received.size(); ++r) {
        append(mine, received[r]);
        std::vector<OnCurve>().swap(received[r]);
    }
    std::ranges::sort(mine);
    ids_.reserve(mine.size());
    for (const auto& place : mine) ids_.push_back(place.id);
    std::vector<std::int64_t> counts;
    std::int64_t before = 0;
    for (auto w = first_window(); w < end_window(); ++w) {
        const auto end =
            w + 1 == num_windows ? std::ssize(mine) : std::ranges::lower_bound(mine, splitters[w]) - mine.begin();
        counts.push_back(end - before);
        before = end;
    }
    const auto all = gather_everywhere(messages_, counts);
    std::partial_sum(all.begin(), all.end(), begins_.begin() + 1);
    for (int r = 0; r <= num_ranks; ++r) positions_.begins.push_back(begins_[first_window_of(r)]);
}

// Returns for each of this rank's points whether cells of several windows use it: only facets of such points can be on
// a border.
std::vector<bool> CurveWindows::find_shared_points() const
{
    const auto rank = messages_.rank();
    std::vector<std::int32_t> window_of_point(points_.size(rank), -1);
    std::vector<bool> is_shared(points_.size(rank), false);
    std::vector<bool> seen(mesh_.num_points(), false);
    for (std::int32_t round = 0; round < num_rounds(); ++round) {
        const auto window = first_window() + round;
        std::vector<std::vector<std::int32_t>> uses(messages_.size());
        if (window < end_window())
            for (const auto point : points_of(mesh_.cells(ids(window)), seen))
                uses[points_.rank_of(point)].push_back(point);
        mesh_.release_pages();
        const auto received = exchange(messages_, std::move(uses));
        for (int r = 0; r < messages_.size(); ++r)
            for (const auto point : received[r]) {
                const auto user = first_window_of(r) + round;
                auto& first = window_of_point[point - points_.begin(rank)];
                if (first < 0) first = user;
                if (first != user) is_shared[point - points_.begin(rank)] = true;
            }
    }
    return is_shared;
}

void CurveWindows::find_crossings(const std::vector<bool>& is_shared)
{
    const std::vector<std::uint8_t> shared_here(is_shared.begin(), is_shared.end());
    std::vector<bool> marks(mesh_.num_points(), false);
    std::vector<BorderFacet> facets;  // the facets that this rank compares
    border_points_.resize(end_window() - first_window());
    DuplicateCells duplicates(messages_);
    for (std::int32_t round = 0; round < num_rounds(); ++round) {
        const auto window = first_window() + round;
        Mesh cells;
        std::vector<std::int32_t> points;
        if (window < end_window()) {
            cells = mesh_.cells(ids(window));
            points = points_of(cells, marks);
        }
        const auto flags = fetch<std::uint8_t>(messages_, points_, shared_here, points);
        std::vector<std::vector<BorderFacet>> to(messages_.size());
        if (window < end_window()) {
            auto& border = border_points_[window - first_window()];
            for (std::size_t i = 0; i < points.size(); ++i)
                if (flags[i] != 0) border.push_back(points[i]);
            for (const auto point : border) marks[point] = true;
            if (!rows_are_points_) {
                for (auto facet : with_numbers_in_file(
                         ids(window), [&] { return facets_of_marked_points(cells, dimensions_, marks); })) {
                    const auto position = static_cast<std::int32_t>(begin(window)) + facet.cell;
                    const auto type = cells.cell_types[facet.cell];
                    facet.cell = ids(window)[facet.cell];
                    to[home_of(facet, messages_.size())].push_back({facet, position, type});
                }
                keep_inner_graph(window, cells);
            }
            duplicates.add_window(window, cells, ids(window), marks);
            for (const auto point : points) marks[point] = false;
            add_faults(window, cells);
        }
        cells = {};
        mesh_.release_pages();
        duplicates.send();
        for (const auto& part : exchange(messages_, std::move(to))) append(facets, part);
    }

    duplicates.count(faults_);
    sort_unique(facets);  // a cell may have the same facet twice
    std::vector<std::vector<Crossing>> pairs(messages_.size());
    std::vector<SharedFacet> cells;
    for (std::size_t begin = 0, end = 0; begin < facets.size(); begin = end) {
        while (end < facets.size() && facets[end].facet.key == facets[begin].facet.key) ++end;
        const auto group = std::span(facets).subspan(begin, end - begin);
        if (group.size() > 2)
            crowds_.add(std::array{group[0].facet.cell, group[1].facet.cell, group[2].facet.cell},
                        std::array{group[0].cell_type, group[1].cell_type, group[2].cell_type},
                        static_cast<std::int32_t>(group.size()));
        cells.clear();
        for (std::size_t i = 0; i < group.size(); ++i)
            cells.push_back({group[i].facet.key, static_cast<std::int32_t>(i)});
        for (const auto& [i, j] : cells_joined_by(cells))
            for (const auto& pair :
                 {Crossing{group[i].position, group[j].position}, Crossing{group[j].position, group[i].position}})
                pairs[positions_.rank_of(pair.here)].push_back(pair);
    }
    std::vector<BorderFacet>().swap(facets);
    for (const auto& part : exchange(messages_, std::move(pairs)))
        for (const auto& pair : part)
            (window_of(pair.here) == window_of(pair.there) ? inner_crossings_ : crossings_).push_back(pair);
    for (auto* found : {&crossings_, &inner_crossings_}) {
        std::ranges::sort(*found);
        found->erase(std::ranges::unique(*found).begin(), found->end());
    }
}

void CurveWindows::find_nearest()
{
    constexpr std::int32_t num_nearest = 8;  // as in `mesh_graph`
    nearest_ = std::make_unique<NearestGraph>(*this, messages_, num_nearest,
                                              RowCoordinates(*this, messages_, RowCoordinate::Point));
    for (auto window = first_window(); window < end_window(); ++window) {
        const auto most_bytes = 8 * (size(window) + 1) + 2 * num_nearest * 4 * size(window);
        if (most_bytes > cache_left_) return;
        cache_[window - first_window()] = nearest_->inner_graph(window);
        cache_left_ -= most_bytes;
    }
}

void CurveWindows::keep_inner_graph(std::int32_t window, const Mesh& cells)
{
    // Estimated size of the graph: a cell has about as many neighbours as points.
    if (8 * (cells.num_cells() + 1) + 4 * cells.cells.num_entries() > cache_left_) return;
    auto& kept = cache_[window - first_window()];
    kept = inner_graph_of(window, cells);
    cache_left_ -= 8 * (kept->num_rows() + 1) + 4 * kept->num_entries();
}

Csr CurveWindows::inner_graph(std::int32_t window) const
{
    if (nearest_) {
        const auto& kept = cache_[window - first_window()];
        return kept ? *kept : nearest_->inner_graph(window);
    }
    std::vector<std::pair<std::int32_t, std::int32_t>> edges;
    const auto first = static_cast<std::int32_t>(begin(window));
    for (const auto& pair : crossings_from(inner_crossings_, begin(window), begin(window) + size(window)))
        edges.emplace_back(pair.here - first, pair.there - first);
    if (const auto& kept = cache_[window - first_window()]) return with_edges(*kept, 0, edges);
    const auto graph = inner_graph_of(window, cells(window));
    mesh_.release_pages();
    return with_edges(graph, 0, edges);
}

// Leaves out facets on the border, whose cells are joined by `inner_crossings_`.
Csr CurveWindows::inner_graph_of(std::int32_t window, const Mesh& cells) const
{
    std::vector<bool> is_border(mesh_.num_points(), false);
    for (const auto point : border_points_[window - first_window()]) is_border[point] = true;
    FacetCrowds crowds;
    auto graph = with_numbers_in_file(ids(window), [&] { return cell_graph(cells, dimensions_, &is_border, &crowds); });
    // Neighbours in large crowds, and which cell of a crowd is the first, depend on the cells' order in the file.
    if (crowds.most_cells > most_mutual_cells || crowds.first_cell >= 0) {
        std::vector<std::int32_t> order(ids(window).size()), sorted_ids;
        std::iota(order.begin(), order.end(), 0);
        std::ranges::sort(order, {}, [&](std::int32_t cell) { return ids(window)[cell]; });
        for (const auto cell : order) sorted_ids.push_back(ids(window)[cell]);
        const auto in_file = cell_graph(mesh_.cells(sorted_ids), dimensions_, &is_border, &crowds);
        std::vector<std::int32_t> place(order.size()), row;
        for (std::size_t i = 0; i < order.size(); ++i) place[order[i]] = static_cast<std::int32_t>(i);
        if (crowds.first_cell >= 0) crowds.first_cell = order[crowds.first_cell];
        graph = {};
        for (const auto at : place) {
            row.clear();
            for (const auto neighbor : in_file.row(at)) row.push_back(order[neighbor]);
            std::ranges::sort(row);
            graph.push_row(row);
        }
    }
    crowds_.most_cells = std::max(crowds_.most_cells, crowds.most_cells);
    if (crowds.first_cell >= 0 && (crowds_.first_cell < 0 || ids(window)[crowds.first_cell] < crowds_.first_cell))
        crowds_.first_cell = ids(window)[crowds.first_cell];
    return graph;
}

FacetCrowds CurveWindows::crowds() const
{
    FacetCrowds all;
    for (const auto& found : gather_everywhere(messages_, std::vector{crowds_})) {
        all.most_cells = std::max(all.most_cells, found.most_cells);
        if (found.first_cell >= 0 && (all.first_cell < 0 || found.first_cell < all.first_cell))
            all.first_cell = found.first_cell;
    }
    return all;
}

void CurveWindows::add_faults(std::int32_t window, const Mesh& cells)
{
    const auto found = find_cell_faults(cells, ids(window));
    add(faults_.degenerate_cells, faults_.first_degenerate, found.degenerate_cells, found.first_degenerate);
    add(faults_.inverted_cells, faults_.first_inverted, found.inverted_cells, found.first_inverted);
}

MeshFaults CurveWindows::faults() const
{
    MeshFaults mine = faults_, all;
    mine.unused_points = std::ranges::count(first_cells_, -1);
    for (const auto& found : gather_everywhere(messages_, std::vector{mine})) {
        all.unused_points += found.unused_points;
        add(all.duplicate_cells, all.first_duplicate, found.duplicate_cells, found.first_duplicate);
        add(all.degenerate_cells, all.first_degenerate, found.degenerate_cells, found.first_degenerate);
        add(all.inverted_cells, all.first_inverted, found.inverted_cells, found.first_inverted);
    }
    return all;
}

std::span<const Crossing> CurveWindows::crossings(std::int32_t window) const
{
    return nearest_ ? nearest_->crossings(window)
                    : crossings_from(crossings_, begin(window), begin(window) + size(window));
}

WindowGraph CurveWindows::graph(std::int32_t window) const
{
    return join_outside(inner_graph(window), crossings(window), begin(window));
}

template <class T>
std::vector<T> CurveWindows::centroids(std::int32_t window) const
{
    Mesh rows;
    if (is_point_cloud())
        rows.points = mesh_.rest().points.gather(ids(window));
    else
        rows = cells(window);
    const auto origin = std::is_same_v<T, float> ? first_point(mesh_.rest()) : std::array<double, 3>{};
    auto found = row_centroids<T>(rows, origin);
    mesh_.release_pages();
    return found;
}

template std::vector<float> CurveWindows::centroids(std::int32_t) const;
template std::vector<double> CurveWindows::centroids(std::int32_t) const;

DataArray CurveWindows::points_of_rows(std::int32_t window) const
{
    const auto& points = mesh_.rest().points;
    auto found = is_point_cloud() ? points.gather(ids(window)) : points.gather(cells(window).cells.indices);
    mesh_.release_pages();
    return found;
}

}  // namespace meshard
