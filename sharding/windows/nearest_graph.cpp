// SPDX-License-Identifier: Apache-2.0
#include "sharding/windows/nearest_graph.h"

#include "partition/lists.h"
#include "partition/mesh/neighbor_graph.h"
#include "sharding/windows/curve_windows.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <utility>

namespace meshard {

namespace {

// A window's request for another window's rows near its own.
struct Request {
    int rank;
    std::int32_t window;  // the requested window
    CoordinateBox box;
    double most_squared;
};

struct Row {
    std::int32_t id, position;
    std::array<double, 3> point;
};

struct Neighbor {
    double squared_distance;
    std::int32_t id, position;

    auto operator<=>(const Neighbor&) const = default;
};

}  // namespace

// The search for the nearest neighbours of the rows of one window, which are numbered in the order of their ids.
class NearestGraph::WindowSearch {
public:
    WindowSearch(const NearestGraph& graph, std::int32_t window)
        : graph_(graph), window_(window), rows_(graph.ordered(window)), coordinates_(rows_.coordinates.to_doubles()),
          inner_(nearest_neighbors(rows_.coordinates, graph.num_nearest_)),
          worst_(rows_.order.size(), std::numeric_limits<double>::infinity())
    {
        for (std::int64_t row = 0; row < inner_.num_rows(); ++row)
            if (const auto found = inner_.row(row); std::ssize(found) == graph.num_nearest_)
                worst_[row] = squared_distance(row, found.back());
    }

    /// Requests for rows of other windows that may be nearer than those found so far.
    std::vector<Request> requests() const
    {
        const auto reach = worst_.empty() ? -1 : std::ranges::max(worst_);
        std::vector<Request> result;
        for (std::int32_t other = 0; other < graph_.windows_.num_windows(); ++other) {
            const auto& box = graph_.coordinates_.box(other);
            if (other == window_ || graph_.windows_.size(other) == 0 ||
                !(box.squared_distance(graph_.coordinates_.box(window_)) <= reach))
                continue;
            Request request{graph_.messages_.rank(), other, {}, -1};
            for (std::size_t row = 0; row < worst_.size(); ++row) {
                const auto point = coordinates_at(coordinates_, static_cast<std::int64_t>(row));
                if (box.squared_distance(point) > worst_[row]) continue;
                request.box.add(point);
                request.most_squared = std::max(request.most_squared, worst_[row]);
            }
            if (request.most_squared >= 0) result.push_back(request);
        }
        return result;
    }

    void add(std::vector<Row> others)
    {
        if (others.empty()) return;
        std::ranges::sort(others, {}, &Row::id);
        CoordinateBox box;
        std::vector<double> coordinates;
        for (const auto& other : others) {
            box.add(other.point);
            append(coordinates, other.point);
        }
        const PointTree tree(DataArray::from("Coordinates", std::move(coordinates), 3));
        for (std::int64_t row = 0; row < std::ssize(worst_); ++row) {
            const auto point = coordinates_at(coordinates_, row);
            if (box.squared_distance(point) > worst_[row]) continue;
            const auto found = tree.nearest(point, graph_.num_nearest_, worst_[row]);
            if (found.empty()) continue;
            auto& list = lists_.try_emplace(static_cast<std::int32_t>(row)).first->second;
            if (list.empty())
                for (const auto j : inner_.row(row)) list.push_back({squared_distance(row, j), id(j), position(j)});
            for (const auto& [squared, at] : found) list.push_back({squared, others[at].id, others[at].position});
            std::ranges::sort(list);
            if (std::ssize(list) > graph_.num_nearest_) list.resize(graph_.num_nearest_);
            if (std::ssize(list) == graph_.num_nearest_) worst_[row] = list.back().squared_distance;
        }
    }

    /// Calls `tell` for each row with its index in the window, the number of its nearest neighbours in the window, and
    /// its neighbours in other windows.
    template <class F>
    void finish(F&& tell) const
    {
        for (std::int64_t row = 0; row < inner_.num_rows(); ++row) {
            std::vector<std::int32_t> elsewhere;
            auto num_inside = std::ssize(inner_.row(row));
            if (const auto list = lists_.find(static_cast<std::int32_t>(row)); list != lists_.end()) {
                for (const auto& neighbor : list->second)
                    if (graph_.windows_.window_of(neighbor.position) != window_) elsewhere.push_back(neighbor.position);
                num_inside = std::ssize(list->second) - std::ssize(elsewhere);
            }
            tell(rows_.order[row], num_inside, elsewhere);
        }
    }

private:
    std::int32_t id(std::int32_t row) const { return graph_.windows_.ids(window_)[rows_.order[row]]; }
    std::int32_t position(std::int32_t row) const
    {
        return static_cast<std::int32_t>(graph_.windows_.begin(window_)) + rows_.order[row];
    }

    // Adds in the same order as the search tree, so that the bits are equal.
    double squared_distance(std::int64_t a, std::int64_t b) const
    {
        double sum = 0;
        for (int d = 0; d < 3; ++d) {
            const auto difference = coordinates_[3 * a + d] - coordinates_[3 * b + d];
            sum += difference * difference;
        }
        return sum;
    }

    const NearestGraph& graph_;
    std::int32_t window_;
    Ordered rows_;
    std::vector<double> coordinates_;
    Csr inner_;
    // For each row the squared distance of its last neighbour so far.
    std::vector<double> worst_;
    // Neighbours of rows that have some in other windows.
    std::unordered_map<std::int32_t, std::vector<Neighbor>> lists_;
};

NearestGraph::NearestGraph(const CurveWindows& windows, RankMessages& messages, std::int32_t num_nearest,
                           RowCoordinates coordinates)
    : windows_(windows), messages_(messages), num_nearest_(num_nearest), coordinates_(std::move(coordinates)),
      num_inside_(windows.ids().size(), 0)
{
    std::vector<Crossing> found;
    for (std::int32_t round = 0; round < windows.num_rounds(); ++round) find_in_round(round, found);
    std::vector<std::vector<Crossing>> to(messages.size());
    for (const auto& [here, there] : found) {
        to[messages.rank()].push_back({here, there});
        to[windows.positions().rank_of(there)].push_back({there, here});
    }
    std::vector<Crossing>().swap(found);
    for (const auto& part : exchange(messages, std::move(to))) append(crossings_, part);
    sort_unique(crossings_);
}

// In each round every rank searches for the rows of one of its windows.
void NearestGraph::find_in_round(std::int32_t round, std::vector<Crossing>& found)
{
    const auto window = windows_.window_in_round(messages_.rank(), round);
    std::optional<WindowSearch> search;
    if (window >= 0) search.emplace(*this, window);
    const auto requests = gather_everywhere(messages_, search ? search->requests() : std::vector<Request>{});
    for (std::int32_t asked = 0; asked < windows_.num_rounds(); ++asked) {
        const auto is_asked = [&](const Request& request) {
            for (int rank = 0; rank < messages_.size(); ++rank)
                if (windows_.window_in_round(rank, asked) == request.window) return true;
            return false;
        };
        if (std::ranges::none_of(requests, is_asked)) continue;  // the same on all ranks
        std::vector<std::vector<Row>> to(messages_.size());
        const auto other = windows_.window_in_round(messages_.rank(), asked);
        std::vector<double> coordinates;
        for (const auto& request : requests) {
            if (request.window != other) continue;
            if (coordinates.empty()) coordinates = coordinates_.of(other).to_doubles();
            for (std::int64_t row = 0; row < windows_.size(other); ++row)
                if (const auto point = coordinates_at(coordinates, row);
                    request.box.squared_distance(point) <= request.most_squared)
                    to[request.rank].push_back(
                        {windows_.ids(other)[row], static_cast<std::int32_t>(windows_.begin(other) + row), point});
        }
        std::vector<Row> others;
        for (const auto& part : exchange(messages_, std::move(to))) append(others, part);
        if (search) search->add(std::move(others));
    }
    if (!search) return;
    const auto first = windows_.begin(window) - windows_.positions().begin(messages_.rank());
    search->finish([&](std::int32_t index, std::int64_t num_inside, std::span<const std::int32_t> elsewhere) {
        num_inside_[first + index] = static_cast<std::uint16_t>(num_inside);
        for (const auto position : elsewhere)
            found.push_back({static_cast<std::int32_t>(windows_.begin(window)) + index, position});
    });
}

NearestGraph::Ordered NearestGraph::ordered(std::int32_t window) const
{
    Ordered rows;
    rows.order.resize(windows_.size(window));
    std::iota(rows.order.begin(), rows.order.end(), 0);
    const auto ids = windows_.ids(window);
    std::ranges::sort(rows.order, {}, [&](std::int32_t index) { return ids[index]; });
    rows.coordinates = coordinates_.of(window).gather(rows.order);
    return rows;
}

Csr NearestGraph::inner_graph(std::int32_t window) const
{
    const auto rows = ordered(window);
    const auto nearest = nearest_neighbors(rows.coordinates, num_nearest_);
    std::vector<std::int32_t> row_at(rows.order.size());
    for (std::size_t row = 0; row < rows.order.size(); ++row) row_at[rows.order[row]] = static_cast<std::int32_t>(row);
    const auto first = windows_.begin(window) - windows_.positions().begin(messages_.rank());
    Csr directed;
    std::vector<std::int32_t> found;
    for (std::size_t index = 0; index < row_at.size(); ++index) {
        found.clear();
        for (const auto row : nearest.row(row_at[index]).first(num_inside_[first + static_cast<std::int64_t>(index)]))
            found.push_back(rows.order[row]);
        directed.push_row(found);
    }
    return symmetric_graph(directed);
}

std::span<const Crossing> NearestGraph::crossings(std::int32_t window) const
{
    return crossings_from(crossings_, windows_.begin(window), windows_.begin(window) + windows_.size(window));
}

WindowGraph NearestGraph::graph(std::int32_t window) const
{
    return join_outside(inner_graph(window), crossings(window), windows_.begin(window));
}

}  // namespace meshard
