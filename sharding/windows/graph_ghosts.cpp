// SPDX-License-Identifier: Apache-2.0
#include "sharding/windows/graph_ghosts.h"

#include "partition/lists.h"
#include "sharding/windows/nearest_graph.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace meshard {

namespace {

struct Candidate {
    std::int32_t position, part;

    auto operator<=>(const Candidate&) const = default;
};

Candidate candidate_of(const GhostMark& mark)
{
    return {mark.position, mark.part};
}

// Marks the neighbours of the ghosts of the previous layer.
void add_layer(const CurveWindows& windows, RankMessages& messages, const GraphOfWindow& graph_of,
               std::span<const std::int32_t> owners, std::int32_t level, std::vector<GhostMark>& marks)
{
    std::ranges::sort(marks);
    std::vector<Candidate> candidates;
    for (std::int32_t round = 0; round < windows.num_rounds(); ++round) {
        const auto window = windows.window_in_round(messages.rank(), round);
        std::vector<std::vector<Candidate>> to(messages.size());
        if (window >= 0) {
            const auto graph = graph_of(window);
            const auto begin = static_cast<std::int32_t>(windows.begin(window));
            const auto of_window = std::ranges::lower_bound(marks, begin, {}, &GhostMark::position);
            for (auto mark = of_window; mark != marks.end() && mark->position < begin + graph.num_cells; ++mark) {
                if (mark->level != level - 1) continue;
                for (const auto neighbor : graph.graph.row(mark->position - begin)) {
                    const auto position =
                        neighbor < graph.num_cells ? begin + neighbor : graph.outside[neighbor - graph.num_cells];
                    to[windows.positions().rank_of(position)].push_back({position, mark->part});
                }
            }
        }
        for (const auto& part : exchange(messages, std::move(to))) append(candidates, part);
    }
    sort_unique(candidates);
    const auto num_known = marks.size();
    const auto begin = windows.positions().begin(messages.rank());
    for (const auto& candidate : candidates) {
        if (owners[candidate.position - begin] == candidate.part) continue;
        if (std::ranges::binary_search(std::span(marks).first(num_known), candidate, {}, candidate_of)) continue;
        marks.push_back({candidate.position, candidate.part, level});
    }
}

}  // namespace

void add_first_ghosts(const WindowGraph& graph, std::int64_t begin, std::span<const std::int32_t> owners,
                      std::span<const std::int32_t> outside, std::vector<GhostMark>& marks)
{
    std::unordered_map<std::int32_t, std::int32_t> seen_by;  // for each part the last cell that has a neighbour in it
    for (std::int32_t cell = 0; cell < graph.num_cells; ++cell) {
        for (const auto neighbor : graph.graph.row(cell)) {
            const auto owner = neighbor < graph.num_cells ? owners[neighbor] : outside[neighbor - graph.num_cells];
            if (owner == owners[cell]) continue;
            const auto [last, is_new] = seen_by.try_emplace(owner, cell);
            if (!is_new && std::exchange(last->second, cell) == cell) continue;
            marks.push_back({static_cast<std::int32_t>(begin) + cell, owner, 1});
        }
    }
}

void spread_ghosts(const CurveWindows& windows, RankMessages& messages, const GraphOfWindow& graph_of,
                   std::span<const std::int32_t> owners, std::int32_t num_layers, std::vector<GhostMark>& marks)
{
    for (std::int32_t level = 2; level <= num_layers; ++level)
        add_layer(windows, messages, graph_of, owners, level, marks);
}

std::vector<GhostMark> ghosts_by_nearest(const CurveWindows& windows, RankMessages& messages,
                                         std::span<const std::int32_t> owners, std::int32_t num_nearest,
                                         std::int32_t num_layers)
{
    const NearestGraph nearest(windows, messages, num_nearest,
                               RowCoordinates(windows, messages, RowCoordinate::Centroid));
    const auto graph_of = [&](std::int32_t window) { return nearest.graph(window); };
    std::vector<GhostMark> marks;
    for (std::int32_t round = 0; round < windows.num_rounds(); ++round) {
        const auto window = windows.window_in_round(messages.rank(), round);
        const auto graph = window >= 0 ? graph_of(window) : WindowGraph{};
        const auto outside = fetch<std::int32_t>(messages, windows.positions(), owners, graph.outside);
        if (window < 0) continue;
        const auto begin = windows.begin(window);
        add_first_ghosts(graph, begin,
                         owners.subspan(begin - windows.positions().begin(messages.rank()), windows.size(window)),
                         outside, marks);
    }
    spread_ghosts(windows, messages, graph_of, owners, num_layers, marks);
    return marks;
}

}  // namespace meshard
