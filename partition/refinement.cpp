// SPDX-License-Identifier: Apache-2.0
#include "partition/refinement.h"

#include "partition/balance.h"
#include "partition/boundary_search.h"
#include "partition/error.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace meshard {

namespace {

bool is_plain(const BalanceTarget& balance)
{
    return balance.row_weights.empty() && balance.capacities.empty();
}

BalanceBound bound_of(const BalanceTarget& balance, std::span<const std::int64_t> most_weight)
{
    return {balance.num_weights, balance.row_weights, most_weight};
}

std::vector<std::int64_t> total_weights(std::int64_t num_rows, const BalanceTarget& balance)
{
    std::vector<std::int64_t> totals(balance.num_weights, balance.row_weights.empty() ? num_rows : 0);
    for (std::size_t i = 0; i < balance.row_weights.size(); ++i) totals[i % totals.size()] += balance.row_weights[i];
    return totals;
}

std::vector<double> shares_of(std::int32_t num_parts, const BalanceTarget& balance)
{
    std::vector<double> shares(num_parts, 1.0 / num_parts);
    if (balance.capacities.empty()) return shares;
    double sum = 0;
    for (const auto capacity : balance.capacities) sum += capacity;
    for (std::int32_t part = 0; part < num_parts; ++part) shares[part] = balance.capacities[part] / sum;
    return shares;
}

std::vector<std::int64_t> part_weights(const Partition& partition, const BalanceTarget& balance)
{
    const auto num_weights = static_cast<std::size_t>(balance.num_weights);
    std::vector<std::int64_t> weights(partition.num_parts * num_weights, 0);
    for (std::size_t i = 0; i < partition.owners.size(); ++i)
        for (std::size_t w = 0; w < num_weights; ++w)
            weights[partition.owners[i] * num_weights + w] +=
                balance.row_weights.empty() ? 1 : balance.row_weights[i * num_weights + w];
    return weights;
}

struct Measures {
    std::int64_t cut = 0;
    std::int64_t largest_ghosts = 0;
    double overload = 0; ///< largest weight over what is allowed, if above
    std::vector<std::int32_t> broken; ///< parts in several pieces

    // Smaller is better: a factor gained in one counts as much as in the other.
    double score() const { return std::log(1.0 + cut) + std::log(1.0 + largest_ghosts); }
};

Measures measure(const Partition& partition, const Csr& graph)
{
    const auto quality = measure_quality(partition, graph);
    Measures measures;
    measures.cut = quality.edge_cut;
    for (std::int32_t part = 0; part < partition.num_parts; ++part) {
        measures.largest_ghosts = std::max(measures.largest_ghosts, quality.parts[part].num_ghosts);
        if (quality.parts[part].num_components > 1) measures.broken.push_back(part);
    }
    return measures;
}

double overload(const Partition& partition, const BalanceTarget& balance, std::span<const std::int64_t> most_weight)
{
    double most = 0;
    const auto weights = part_weights(partition, balance);
    for (std::size_t at = 0; at < weights.size(); ++at)
        most += static_cast<double>(std::max<std::int64_t>(0, weights[at] - most_weight[at]));
    return most;
}

bool has_empty_part(const Partition& partition)
{
    return partition.num_rows() >= partition.num_parts && std::ranges::min(part_sizes(partition)) == 0;
}

// Rows to give away, cheapest first, from parts above their bound to the part next to them that is least full after.
class WeightBalancer {
public:
    WeightBalancer(Partition& partition, const Csr& graph, const BalanceTarget& balance,
                   std::span<const std::int64_t> most_weight)
        : owners_(partition.owners), graph_(graph), bound_(bound_of(balance, most_weight)),
          weights_(part_weights(partition, balance)), sizes_(part_sizes(partition))
    {
    }

    void run()
    {
        // Every move lowers the fill of the fuller of two parts, so that this ends; the limit is for very long ways.
        for (int pass = 0; pass < 1000 && has_full_part(); ++pass)
            if (!pass_over_boundary() && !jump()) break;
    }

private:
    struct Offer {
        std::int32_t loss; // cut edges more
        std::int32_t row;
        std::int32_t to;

        bool operator<(const Offer& other) const { return loss != other.loss ? loss < other.loss : row < other.row; }
    };

    std::int32_t num_parts() const { return static_cast<std::int32_t>(sizes_.size()); }

    double fill(std::int32_t part, std::int32_t row = -1, int sign = 1) const
    {
        double most = 0;
        for (std::int32_t w = 0; w < bound_.num_weights; ++w) {
            const auto at = static_cast<std::size_t>(part) * bound_.num_weights + w;
            const auto weight = weights_[at] + (row < 0 ? 0 : sign * bound_.row_weight(row, w));
            most = std::max(most, static_cast<double>(weight) /
                                      static_cast<double>(std::max<std::int64_t>(bound_.most_weight[at], 1)));
        }
        return most;
    }

    bool has_full_part() const
    {
        for (std::int32_t part = 0; part < num_parts(); ++part)
            if (fill(part) > 1) return true;
        return false;
    }

    // Whether the row is part of the trouble: it has some of the weight that its part has too much of.
    bool helps(std::int32_t row, std::int32_t from) const { return fill(from, row, -1) < fill(from); }

    void move(std::int32_t row, std::int32_t to)
    {
        const auto from = owners_[row];
        for (std::int32_t w = 0; w < bound_.num_weights; ++w) {
            weights_[static_cast<std::size_t>(from) * bound_.num_weights + w] -= bound_.row_weight(row, w);
            weights_[static_cast<std::size_t>(to) * bound_.num_weights + w] += bound_.row_weight(row, w);
        }
        --sizes_[from];
        ++sizes_[to];
        owners_[row] = to;
    }

    bool pass_over_boundary()
    {
        std::vector<double> fills(sizes_.size());
        for (std::int32_t part = 0; part < num_parts(); ++part) fills[part] = fill(part);
        const auto fullest = std::ranges::max(fills);
        // Parts that are nearly full pass on what they get, so that weight flows through them.
        std::vector<Offer> offers;
        for (std::int32_t i = 0; i < static_cast<std::int32_t>(owners_.size()); ++i) {
            const auto from = owners_[i];
            if (fills[from] <= 1 - 0.5 * (fullest - 1)) continue;
            std::int32_t inside = 0, to = -1;
            for (const auto j : graph_.row(i)) {
                const auto part = owners_[j];
                inside += part == from;
                if (part != from && (to < 0 || fills[part] < fills[to])) to = part;
            }
            if (to < 0 || fills[to] >= fills[from]) continue;
            std::int32_t across = 0;
            for (const auto j : graph_.row(i)) across += owners_[j] == to;
            offers.push_back({inside - across, i, to});
        }
        std::sort(offers.begin(), offers.end());
        bool moved = false;
        for (const auto& offer : offers) {
            const auto from = owners_[offer.row];
            if (sizes_[from] == 1 || !helps(offer.row, from)) continue;
            const auto before = fill(from);
            if (before <= 1 && before - fill(offer.to) < 0.01 * before) continue;
            if (fill(offer.to, offer.row) >= before) continue;
            move(offer.row, offer.to);
            moved = true;
        }
        return moved;
    }

    // Where nothing flows: the first row that helps goes from the fullest part straight to the emptiest.
    bool jump()
    {
        std::int32_t fullest = 0, emptiest = 0;
        for (std::int32_t part = 1; part < num_parts(); ++part) {
            if (fill(part) > fill(fullest)) fullest = part;
            if (fill(part) < fill(emptiest)) emptiest = part;
        }
        bool moved = false;
        for (std::int32_t i = 0; i < static_cast<std::int32_t>(owners_.size()) && fill(fullest) > 1; ++i) {
            if (owners_[i] != fullest || sizes_[fullest] == 1 || !helps(i, fullest)) continue;
            if (fill(emptiest, i) >= fill(fullest)) continue;
            move(i, emptiest);
            moved = true;
        }
        return moved;
    }

    std::vector<std::int32_t>& owners_;
    const Csr& graph_;
    BalanceBound bound_;
    std::vector<std::int64_t> weights_, sizes_;
};

void require_sizes(const Partition& partition, const Csr& graph)
{
    if (partition.num_rows() != graph.num_rows())
        throw InvalidInput("refine_partition: the partition has " + std::to_string(partition.num_rows()) +
                           " rows, the graph " + std::to_string(graph.num_rows()) + ".");
    partition.validate();
}

// Makes parts whole and brings them under the bound again; gives up (and leaves the partition as it was) if both cannot
// be had at once.
bool make_contiguous(Partition& partition, const Csr& graph, const RefinementOptions& options,
                     std::span<const std::int64_t> most_weight)
{
    auto whole = partition;
    for (int attempt = 0; attempt < 4; ++attempt) {
        join_islands(whole, graph);
        if (has_empty_part(whole)) return false;
        if (overload(whole, options.balance, most_weight) == 0) {
            partition = std::move(whole);
            return true;
        }
        balance_weights(whole, graph, options.balance);
    }
    return false;
}

} // namespace

std::vector<std::int64_t> largest_weights_allowed(std::int64_t num_rows, std::int32_t num_parts,
                                                  const BalanceTarget& balance)
{
    const auto fail = [](const std::string& what) { throw InvalidInput("BalanceTarget: " + what); };
    if (!(balance.imbalance >= 1))
        fail("imbalance is " + std::to_string(balance.imbalance) + ", expected 1 or more, e.g. 1.03.");
    if (balance.num_weights < 1) fail("num_weights is " + std::to_string(balance.num_weights) + ", expected 1 or more.");
    if (!balance.row_weights.empty() &&
        static_cast<std::int64_t>(balance.row_weights.size()) != num_rows * balance.num_weights)
        fail("there are " + std::to_string(balance.row_weights.size()) + " row weights, expected " +
             std::to_string(num_rows) + " rows of " + std::to_string(balance.num_weights) + ".");
    const auto negative = std::ranges::find_if(balance.row_weights, [](auto weight) { return weight < 0; });
    if (negative != balance.row_weights.end())
        fail("a row weighs " + std::to_string(*negative) + ", expected 0 or more.");
    if (!balance.capacities.empty() && static_cast<std::int32_t>(balance.capacities.size()) != num_parts)
        fail("there are " + std::to_string(balance.capacities.size()) + " capacities for " + std::to_string(num_parts) +
             " parts.");
    for (const auto capacity : balance.capacities)
        if (!(capacity > 0) || !std::isfinite(capacity))
            fail("a capacity is " + std::to_string(capacity) + ", expected a positive number.");

    const auto num_weights = static_cast<std::size_t>(balance.num_weights);
    std::vector<std::int64_t> most(num_parts * num_weights);
    if (is_plain(balance)) {
        std::ranges::fill(most, largest_part_allowed(num_rows, num_parts, balance.imbalance));
        return most;
    }
    const auto totals = total_weights(num_rows, balance);
    const auto shares = shares_of(num_parts, balance);
    for (std::size_t at = 0; at < most.size(); ++at) {
        const auto fair = shares[at / num_weights] * static_cast<double>(totals[at % num_weights]);
        most[at] = std::max(static_cast<std::int64_t>(std::ceil(fair - 1e-9)),
                            static_cast<std::int64_t>(std::floor(balance.imbalance * fair)));
    }
    return most;
}

std::vector<double> imbalances(const Partition& partition, const BalanceTarget& balance)
{
    const auto num_weights = static_cast<std::size_t>(balance.num_weights);
    const auto totals = total_weights(partition.num_rows(), balance);
    const auto shares = shares_of(partition.num_parts, balance);
    const auto weights = part_weights(partition, balance);
    std::vector<double> largest(num_weights, 1);
    for (std::size_t w = 0; w < num_weights; ++w) {
        if (totals[w] == 0) continue;
        largest[w] = 0;
        for (std::int32_t part = 0; part < partition.num_parts; ++part)
            largest[w] = std::max(largest[w], static_cast<double>(weights[part * num_weights + w]) /
                                                  (shares[part] * static_cast<double>(totals[w])));
    }
    return largest;
}

void balance_weights(Partition& partition, const Csr& graph, const BalanceTarget& balance)
{
    require_sizes(partition, graph);
    const auto most_weight = largest_weights_allowed(partition.num_rows(), partition.num_parts, balance);
    if (is_plain(balance)) return balance_parts(partition, graph, balance.imbalance);
    // Only empty parts are to be filled here: no bound.
    if (has_empty_part(partition)) balance_parts(partition, graph, static_cast<double>(partition.num_parts));
    if (overload(partition, balance, most_weight) > 0) WeightBalancer(partition, graph, balance, most_weight).run();
}

std::int64_t join_islands(Partition& partition, const Csr& graph)
{
    require_sizes(partition, graph);
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

std::vector<std::int32_t> refine_partition(Partition& partition, const Csr& graph, const RefinementOptions& options)
{
    require_sizes(partition, graph);
    const auto most_weight = largest_weights_allowed(partition.num_rows(), partition.num_parts, options.balance);
    if (partition.num_parts == 1 || partition.num_rows() == 0) return {};
    balance_weights(partition, graph, options.balance);
    bool is_whole = options.contiguous && make_contiguous(partition, graph, options, most_weight);
    auto best = measure(partition, graph);
    const auto start = best;
    if (best.cut == 0) return options.contiguous ? best.broken : std::vector<std::int32_t>{};

    const bool is_fast = options.effort == RefinementEffort::Fast;
    const int num_cycles = is_fast ? 2 : 6;
    SearchOptions search;
    search.patience = is_fast ? 40 : 100;
    search.ghost_share = options.ghost_share;
    // Both start from what METIS costs: it grows with rows and entries too.
    auto work_left = static_cast<std::int64_t>((is_fast ? 0.75 : 3.5) *
                                               static_cast<double>(graph.num_rows() + graph.num_entries()));
    auto current = partition;
    for (int cycle = 0; cycle < num_cycles && work_left > 0; ++cycle) {
        search.seed = options.seed * 1000 + static_cast<std::uint64_t>(cycle);
        search.most_work = work_left;
        BoundarySearch boundary_search(graph, current.owners, current.num_parts,
                                       bound_of(options.balance, most_weight), search);
        boundary_search.run();
        work_left -= boundary_search.work();
        auto candidate = current;
        if (options.contiguous) {
            const bool stays_whole = make_contiguous(candidate, graph, options, most_weight);
            if (is_whole && !stays_whole) continue;
            is_whole |= stays_whole;
        }
        auto found = measure(candidate, graph);
        const bool is_no_worse = found.cut <= start.cut && found.largest_ghosts <= start.largest_ghosts;
        if (is_no_worse && found.score() < best.score()) {
            partition = std::move(candidate);
            best = std::move(found);
        }
        // What one measure lost goes to the other in the next cycle.
        search.ghost_share = options.ghost_share;
        if (found.cut > start.cut) search.ghost_share = 0.3 * options.ghost_share;
        if (found.largest_ghosts > start.largest_ghosts) search.ghost_share = 0.5 * (1 + options.ghost_share);
    }
    return options.contiguous ? best.broken : std::vector<std::int32_t>{};
}

} // namespace meshard
