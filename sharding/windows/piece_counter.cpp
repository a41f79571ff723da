// SPDX-License-Identifier: Apache-2.0
#include "sharding/windows/piece_counter.h"

#include "partition/lists.h"

#include <algorithm>
#include <numeric>

namespace meshard {

namespace {

struct Join {
    std::int32_t a, b;

    auto operator<=>(const Join&) const = default;
};

}  // namespace

void PieceCounter::add_window(const WindowGraph& graph, std::int64_t begin, std::span<const std::int32_t> owners,
                              std::span<const std::int32_t> outside)
{
    std::vector<std::int32_t> piece(graph.num_cells, -1), stack;
    for (std::int32_t start = 0; start < graph.num_cells; ++start) {
        if (piece[start] >= 0) continue;
        const auto number = static_cast<std::int32_t>(parts_.size());
        parts_.push_back(owners[start]);
        piece[start] = number;
        stack.push_back(start);
        while (!stack.empty()) {
            const auto cell = stack.back();
            stack.pop_back();
            for (const auto neighbor : graph.graph.row(cell))
                if (neighbor < graph.num_cells && piece[neighbor] < 0 && owners[neighbor] == owners[cell]) {
                    piece[neighbor] = number;
                    stack.push_back(neighbor);
                }
        }
    }
    for (std::int32_t cell = 0; cell < graph.num_cells; ++cell) {
        bool is_at_border = false;
        for (const auto neighbor : graph.graph.row(cell)) {
            if (neighbor < graph.num_cells) continue;
            is_at_border = true;
            if (outside[neighbor - graph.num_cells] == owners[cell])
                links_.push_back({graph.outside[neighbor - graph.num_cells], piece[cell]});
        }
        if (is_at_border) places_.push_back({static_cast<std::int32_t>(begin + cell), piece[cell]});
    }
}

std::vector<std::int64_t> PieceCounter::count(RankMessages& messages, const RankRanges& positions,
                                              std::int32_t num_parts) const
{
    const auto counts = gather_everywhere(messages, std::vector{static_cast<std::int32_t>(parts_.size())});
    const auto first_here = std::accumulate(counts.begin(), counts.begin() + messages.rank(), std::int32_t{0});
    std::vector<std::vector<Place>> to(messages.size());
    for (const auto& link : links_)
        to[positions.rank_of(link.position)].push_back({link.position, first_here + link.piece});
    std::vector<Join> joins;
    for (const auto& part : exchange(messages, std::move(to)))
        for (const auto& link : part) {
            const auto here = std::ranges::lower_bound(places_, link.position, {}, &Place::position);
            joins.push_back({first_here + here->piece, link.piece});
        }
    sort_unique(joins);

    const auto parts = gather_on_first(messages, parts_);
    std::vector<std::int64_t> num_pieces(num_parts, 0);
    for (const auto part : parts) ++num_pieces[part];
    std::vector<std::int32_t> leader(parts.size());
    std::iota(leader.begin(), leader.end(), 0);
    const auto find = [&](std::int32_t piece) {
        while (leader[piece] != piece) piece = leader[piece] = leader[leader[piece]];
        return piece;
    };
    for (const auto& join : gather_on_first(messages, std::move(joins))) {
        const auto a = find(join.a), b = find(join.b);
        if (a == b) continue;
        leader[a] = b;
        --num_pieces[parts[b]];
    }
    return num_pieces;
}

}  // namespace meshard
