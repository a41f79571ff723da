// SPDX-License-Identifier: Apache-2.0
#include "partition/cut/refinement.h"

#include "partition/cut/boundary_search.h"
#include "partition/cut/cut_measures.h"
#include "partition/cut/weight_balance.h"

#include <algorithm>
#include <limits>

namespace meshard {

namespace {

// Makes parts connected, as far as the graph is, and balances them again. Leaves the partition unchanged if
// both are not possible at the same time.
void make_contiguous(Partition& partition, const Csr& graph, const BalanceTarget& balance,
                     std::span<const std::int64_t> most_weight)
{
    auto whole = partition;
    auto least_overload = std::numeric_limits<std::int64_t>::max();
    for (int attempt = 0; attempt < 4; ++attempt) {
        if (attempt > 0) balance_weights(whole, graph, balance);
        join_islands(whole, graph);
        if (has_empty_part(whole)) return;
        if (overload(whole, balance, most_weight) > 0) balance_weights_of_whole_parts(whole, graph, balance);
        const auto found = overload(whole, balance, most_weight);
        if (found == 0) {
            partition = std::move(whole);
            return;
        }
        if (found >= least_overload) return;
        least_overload = found;
    }
}

// Searches in cycles, and keeps the best partition found that is in neither measure worse than allowed.
void search(Partition& partition, const Csr& graph, const RefinementOptions& options,
            std::span<const std::int64_t> most_weight, const CutMeasures& start)
{
    constexpr double least_gain = 0.004;  // smallest gain in score of a cycle
    auto fewest_in_pieces = options.contiguous ? parts_in_pieces(partition, graph).size() : 0;
    const bool is_fast = options.effort == RefinementEffort::Fast;
    const auto num_cycles = is_fast ? 2 : 12;
    const auto allowed = options.most.value_or(start);
    SearchOptions search;
    search.ghost_share = options.ghost_share;
    if (!is_fast) {
        search.patience = 100;
        search.balance_of_boundaries = 0.3;
    }
    const BalanceBound bound{options.balance.num_weights, options.balance.row_weights, most_weight};
    // A limit in units of METIS's cost, which also grows with rows and entries.
    auto work_left =
        static_cast<std::int64_t>((is_fast ? 0.75 : 4) * static_cast<double>(graph.num_rows() + graph.num_entries()));
    auto current = partition;
    auto best = start;
    auto lowest_score = std::numeric_limits<double>::infinity();
    for (std::int32_t cycle = 0; cycle < num_cycles && work_left > 0; ++cycle) {
        search.seed = options.seed * 1000 + static_cast<std::uint64_t>(cycle);
        search.most_work = work_left;
        BoundarySearch boundary_search(graph, current.owners, current.num_parts, bound, search);
        boundary_search.run();
        work_left -= boundary_search.work();
        CutMeasures found{boundary_search.cut(), std::ranges::max(boundary_search.ghosts())};
        std::size_t num_in_pieces = 0;
        if (options.contiguous) {
            make_contiguous(current, graph, options.balance, most_weight);
            num_in_pieces = parts_in_pieces(current, graph).size();
            found = measure_cut(current, graph);
        }
        if (num_in_pieces > fewest_in_pieces) {
            current = partition;
            continue;
        }
        // Connected parts have priority over the measures.
        const bool is_better = found.score() < best.score() || !best.is_no_worse_than(allowed);
        if (num_in_pieces < fewest_in_pieces || (found.is_no_worse_than(allowed) && is_better)) {
            partition = current;
            best = found;
            fewest_in_pieces = num_in_pieces;
        }
        if (cycle >= 2 && found.score() > lowest_score - least_gain) break;
        lowest_score = std::min(lowest_score, found.score());
        // The measure that has become worse gets more weight in the next cycle.
        search.ghost_share = options.ghost_share;
        if (found.cut > allowed.cut) search.ghost_share = 0.3 * options.ghost_share;
        if (found.largest_ghosts > allowed.largest_ghosts) search.ghost_share = 0.5 * (1 + options.ghost_share);
    }
}

}  // namespace

std::int64_t join_islands(Partition& partition, const Csr& graph)
{
    partition.validate("refine_partition", graph.num_rows());
    auto& owners = partition.owners;
    const auto num_rows = static_cast<std::int32_t>(owners.size());
    std::int64_t num_moved = 0;
    // An island may join another island that moves too; a few passes settle that.
    for (int pass = 0; pass < 8; ++pass) {
        std::vector<std::int32_t> piece(num_rows, -1), order, first_of_piece;
        std::vector<std::int64_t> piece_sizes;
        order.reserve(num_rows);
        for (std::int32_t start = 0; start < num_rows; ++start) {
            if (piece[start] >= 0) continue;
            const auto number = static_cast<std::int32_t>(piece_sizes.size());
            const auto begin = order.size();
            first_of_piece.push_back(static_cast<std::int32_t>(begin));
            piece[start] = number;
            order.push_back(start);
            for (auto next = begin; next < order.size(); ++next)
                for (const auto j : graph.row(order[next]))
                    if (piece[j] < 0 && owners[j] == owners[start]) {
                        piece[j] = number;
                        order.push_back(j);
                    }
            piece_sizes.push_back(static_cast<std::int64_t>(order.size() - begin));
        }
        std::vector<std::int32_t> main_piece(partition.num_parts, -1);
        for (std::size_t p = 0; p < piece_sizes.size(); ++p) {
            auto& best = main_piece[owners[order[first_of_piece[p]]]];
            if (best < 0 || piece_sizes[p] > piece_sizes[best]) best = static_cast<std::int32_t>(p);
        }
        std::vector<std::int64_t> edges_to(partition.num_parts, 0);
        std::int64_t moved_now = 0;
        for (std::size_t p = 0; p < piece_sizes.size(); ++p) {
            const std::span rows(order.data() + first_of_piece[p], static_cast<std::size_t>(piece_sizes[p]));
            const auto part = owners[rows[0]];
            if (main_piece[part] == static_cast<std::int32_t>(p)) continue;
            std::int32_t best = -1;
            for (const auto i : rows)
                for (const auto j : graph.row(i)) {
                    const auto other = owners[j];
                    if (other == part) continue;
                    ++edges_to[other];
                    if (best < 0 || edges_to[other] > edges_to[best]) best = other;
                }
            for (const auto i : rows)
                for (const auto j : graph.row(i)) edges_to[owners[j]] = 0;
            if (best < 0) continue;
            for (const auto i : rows) owners[i] = best;
            moved_now += piece_sizes[p];
        }
        num_moved += moved_now;
        if (moved_now == 0) break;
    }
    return num_moved;
}

std::vector<std::int32_t> repair_partition(Partition& partition, const Csr& graph, const BalanceTarget& balance,
                                           bool contiguous)
{
    partition.validate("refine_partition", graph.num_rows());
    const auto most_weight = largest_weights_allowed(partition.num_rows(), partition.num_parts, balance);
    if (partition.num_parts == 1 || partition.num_rows() == 0) return {};
    balance_weights(partition, graph, balance);
    if (!contiguous) return {};
    make_contiguous(partition, graph, balance, most_weight);
    return parts_in_pieces(partition, graph);
}

std::vector<std::int32_t> refine_partition(Partition& partition, const Csr& graph, const RefinementOptions& options)
{
    partition.validate("refine_partition", graph.num_rows());
    const auto most_weight = largest_weights_allowed(partition.num_rows(), partition.num_parts, options.balance);
    if (partition.num_parts == 1 || partition.num_rows() == 0) return {};
    repair_partition(partition, graph, options.balance, options.contiguous);
    const auto start = measure_cut(partition, graph);
    if (start.cut > 0) search(partition, graph, options, most_weight, start);
    return options.contiguous ? parts_in_pieces(partition, graph) : std::vector<std::int32_t>{};
}

}  // namespace meshard
