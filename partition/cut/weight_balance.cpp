// SPDX-License-Identifier: Apache-2.0
#include "partition/cut/weight_balance.h"

#include "partition/cut/balance.h"
#include "partition/cut/boundary_search.h"
#include "partition/cut/exchange_search.h"
#include "partition/cut/part_walk.h"

#include <algorithm>
#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace meshard {

namespace {

// Moves candidate rows, cheapest first, from a part above its bound to the neighbouring part that is least full
// afterwards.
class WeightBalancer {
public:
    static constexpr std::size_t longest_walk = 2000;

    WeightBalancer(Partition& partition, const Csr& graph, const BalanceTarget& balance,
                   std::span<const std::int64_t> most_weight, bool keep_whole)
        : keep_whole_(keep_whole), work_left_(100'000'000 + 10 * graph.num_rows()), owners_(partition.owners),
          graph_(graph), bound_{balance.num_weights, balance.row_weights, most_weight},
          weights_(part_weights(partition, balance)), sizes_(part_sizes(partition)), walk_(graph, owners_, longest_walk)
    {
    }

    void run()
    {
        // Every move lowers the larger fill of two parts, so that the loop ends; the limit is for very long chains of
        // moves.
        for (int pass = 0; pass < 1000 && work_left_ > 0 && has_full_part(); ++pass)
            if (!pass_over_boundary() && !(keep_whole_ ? pass_along_chain() : jump())) break;
        while (has_full_part() && exchange()) {
        }
        if (!keep_whole_ && has_full_part()) exchange_by_search();
    }

private:
    struct Offer {
        std::int32_t loss;  // increase of the cut
        std::int32_t row;
        std::int32_t to;

        bool operator<(const Offer& other) const { return loss != other.loss ? loss < other.loss : row < other.row; }
    };

    std::int32_t num_parts() const { return static_cast<std::int32_t>(sizes_.size()); }

    std::int64_t weight_after(std::size_t at, std::int32_t w, std::int32_t gets, std::int32_t gives) const
    {
        return weights_[at] + (gets < 0 ? 0 : bound_.row_weight(gets, w)) -
               (gives < 0 ? 0 : bound_.row_weight(gives, w));
    }

    // Fill of a part after it gets row `gets` and loses row `gives`.
    double fill(std::int32_t part, std::int32_t gets = -1, std::int32_t gives = -1) const
    {
        double most = 0;
        for (std::int32_t w = 0; w < bound_.num_weights; ++w) {
            const auto at = static_cast<std::size_t>(part) * bound_.num_weights + w;
            most = std::max(most, static_cast<double>(weight_after(at, w, gets, gives)) /
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

    // Returns whether the row has some of a weight that is above its part's bound.
    bool helps(std::int32_t row, std::int32_t from) const { return fill(from, -1, row) < fill(from); }

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
        // Nearly full parts pass on the weight that they get, so that it flows through them.
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
            if (work_left_ <= 0) break;
            if (!may_go(offer.row, offer.to)) continue;
            move(offer.row, offer.to);
            moved = true;
        }
        return moved;
    }

    // Returns whether `row` has a neighbour in `part` other than `without`, which leaves the part at the same time.
    bool touches(std::int32_t row, std::int32_t part, std::int32_t without = -1) const
    {
        return std::ranges::any_of(graph_.row(row), [&](auto j) { return j != without && owners_[j] == part; });
    }

    // Returns whether parts stay connected, if required, when `row` moves to a part that `without` leaves at the same
    // time.
    bool may_go(std::int32_t row, std::int32_t to, std::int32_t without = -1)
    {
        return !keep_whole_ || (touches(row, to, without) && !may_break(row));
    }

    bool may_break(std::int32_t row)
    {
        const bool breaks = walk_.may_break(row);
        work_left_ -= walk_.length();
        return breaks;
    }

    // Used if no neighbour is less full by a whole row: moves one row from each part to the next along the shortest
    // chain of parts from a part above its bound to one with room.
    bool pass_along_chain()
    {
        for (std::int32_t part = 0; part < num_parts(); ++part)
            if (fill(part) > 1 && pass_along_chain_from(part)) return true;
        return false;
    }

    bool pass_along_chain_from(std::int32_t first)
    {
        const auto most_fill = fill(first);
        const auto rows = rows_by_label(owners_, num_parts());
        // The row that the previous part would give.
        std::vector<std::int32_t> row_into(num_parts(), -1), reached{first};
        for (std::size_t next = 0; next < reached.size(); ++next) {
            const auto from = reached[next];
            if (sizes_[from] == 1) continue;
            for (const auto row : rows.row(from)) {
                if (from == first ? !helps(row, from) : fill(from, row_into[from], row) >= most_fill) continue;
                const auto is_way_on = [&](std::int32_t j) { return owners_[j] != first && row_into[owners_[j]] < 0; };
                if (std::ranges::none_of(graph_.row(row), is_way_on) ||
                    (from != first && !touches(row_into[from], from, row)))
                    continue;
                if (work_left_ <= 0) return false;
                if (may_break(row)) continue;
                for (const auto j : graph_.row(row)) {
                    if (!is_way_on(j)) continue;
                    const auto to = owners_[j];
                    row_into[to] = row;
                    reached.push_back(to);
                    if (fill(to, row) > 1) continue;
                    for (auto part = to; part != first;) {
                        const auto before = owners_[row_into[part]];
                        move(row_into[part], part);
                        part = before;
                    }
                    return true;
                }
            }
        }
        return false;
    }

    // Used if no such chain exists: moves rows with the critical weight from the fullest part directly to the part that
    // is least full afterwards.
    bool jump()
    {
        std::int32_t fullest = 0;
        for (std::int32_t part = 1; part < num_parts(); ++part)
            if (fill(part) > fill(fullest)) fullest = part;
        bool moved = false;
        for (std::int32_t i = 0; i < static_cast<std::int32_t>(owners_.size()) && fill(fullest) > 1; ++i) {
            if (owners_[i] != fullest || sizes_[fullest] == 1 || !helps(i, fullest)) continue;
            std::int32_t best = -1;
            for (std::int32_t part = 0; part < num_parts(); ++part)
                if (part != fullest && (best < 0 || fill(part, i) < fill(best, i))) best = part;
            if (fill(best, i) >= fill(fullest)) continue;
            move(i, best);
            moved = true;
        }
        return moved;
    }

    // Weight of a part above its bound, relative to the bound, summed over all weights, after it gets row `gets` and
    // loses row `gives`.
    double excess(std::int32_t part, std::int32_t gets = -1, std::int32_t gives = -1) const
    {
        double sum = 0;
        for (std::int32_t w = 0; w < bound_.num_weights; ++w) {
            const auto at = static_cast<std::size_t>(part) * bound_.num_weights + w;
            const auto most = static_cast<double>(std::max<std::int64_t>(bound_.most_weight[at], 1));
            sum += std::max(0.0, static_cast<double>(weight_after(at, w, gets, gives)) / most - 1);
        }
        return sum;
    }

    // If parts are full of different weights: moves a row of a part above its bound to any part, or exchanges it with
    // any row, if that reduces the weight above the bound. Parts that stay connected exchange rows of their boundary.
    bool exchange()
    {
        const auto rows = rows_by_label(owners_, num_parts());
        std::vector<std::vector<std::int32_t>> next_to_from(num_parts());  // rows of the other parts
        for (std::int32_t from = 0; from < num_parts(); ++from) {
            const auto excess_from = excess(from);
            if (excess_from == 0) continue;
            if (keep_whole_) {
                for (auto& of_part : next_to_from) of_part.clear();
                for (std::int32_t i = 0; i < static_cast<std::int32_t>(owners_.size()); ++i)
                    if (owners_[i] != from && touches(i, from)) next_to_from[owners_[i]].push_back(i);
            }
            for (const auto row : rows.row(from)) {
                if (!helps(row, from)) continue;
                for (std::int32_t to = 0; to < num_parts(); ++to) {
                    if (to == from) continue;
                    const auto before = excess_from + excess(to) - 1e-9;
                    if (keep_whole_ && !touches(row, to)) continue;
                    if (sizes_[from] > 1 && excess(from, -1, row) + excess(to, row) < before && may_go(row, to)) {
                        move(row, to);
                        return true;
                    }
                    for (const auto other :
                         keep_whole_ ? std::span<const std::int32_t>(next_to_from[to]) : rows.row(to)) {
                        if (--work_left_ < 0) return false;
                        if (excess(from, other, row) + excess(to, row, other) >= before) continue;
                        if (!may_go(row, to, other) || !may_go(other, from, row)) continue;
                        move(row, to);
                        move(other, from);
                        return true;
                    }
                }
            }
        }
        return false;
    }

    // Last resort, where trying all pairs takes too long: exchanges by `ExchangeSearch`, which cut more.
    void exchange_by_search()
    {
        ExchangeSearch search(bound_, owners_, num_parts());
        std::int64_t work_left = 10'000'000;
        for (bool found = true; found && work_left > 0;) {
            found = false;
            for (std::int32_t from = 0; from < num_parts(); ++from)
                while (excess(from) > 0 && work_left > 0 && exchange_from(from, search, work_left)) found = true;
        }
    }

    // Makes the exchange with a row of `from` that reduces the weight above the bound most.
    bool exchange_from(std::int32_t from, ExchangeSearch& search, std::int64_t& work_left)
    {
        const auto weights_of = [&](std::int32_t part) {
            return std::span(weights_).subspan(static_cast<std::size_t>(part) * bound_.num_weights, bound_.num_weights);
        };
        ExchangeSearch::Found best{.gain = 1e-9};
        std::int32_t best_to = -1;
        for (std::int32_t to = 0; to < num_parts(); ++to) {
            if (to == from) continue;
            if (search.improve(from, weights_of(from), to, weights_of(to), sizes_[from] > 1, best, work_left))
                best_to = to;
        }
        if (best_to < 0) return false;
        // Rows with the same weights are exchanged as long as that is as good.
        const bool exchanges = best.other >= 0;
        AlikeRows rows(*this, best.row, from, best_to, search.rows(from)),
            others(*this, best.other, best_to, from,
                   exchanges ? search.rows(best_to) : std::span<const std::int32_t>{});
        for (bool is_first = true;; is_first = false) {
            const auto row = rows.next(), other = others.next();
            if (row < 0 || (exchanges ? other < 0 : sizes_[from] == 1)) break;
            const auto gain = excess(from) + excess(best_to) - excess(from, other, row) - excess(best_to, row, other);
            if (!is_first && gain < best.gain - 1e-9) break;
            move(row, best_to);
            search.add(best_to, row);
            rows.add_neighbors(row);
            if (!exchanges) continue;
            move(other, from);
            search.add(from, other);
            others.add_neighbors(other);
        }
        return true;
    }

    // The rows of a part with the same weights as one of them, in the order in which they leave it: those first whose
    // move increases the cut least.
    class AlikeRows {
    public:
        AlikeRows(const WeightBalancer& balancer, std::int32_t like, std::int32_t from, std::int32_t to,
                  std::span<const std::int32_t> rows)
            : balancer_(balancer), like_(like), from_(from), to_(to)
        {
            for (const auto row : rows) add(row);
            std::ranges::make_heap(heap_, std::greater());
        }

        // Returns -1 if there are no more.
        std::int32_t next()
        {
            while (!heap_.empty()) {
                std::ranges::pop_heap(heap_, std::greater());
                const auto [loss, row] = heap_.back();
                heap_.pop_back();
                if (balancer_.owners_[row] != from_) continue;
                const auto loss_now = loss_of(row);
                if (loss == loss_now) return row;
                if (loss > loss_now) continue;  // it is in the heap again
                heap_.emplace_back(loss_now, row);
                std::ranges::push_heap(heap_, std::greater());
            }
            return -1;
        }

        // Call it when `row` has moved: its neighbours may now move at another cost.
        void add_neighbors(std::int32_t row)
        {
            for (const auto j : balancer_.graph_.row(row))
                if (add(j)) std::ranges::push_heap(heap_, std::greater());
        }

    private:
        bool add(std::int32_t row)
        {
            const auto& bound = balancer_.bound_;
            if (balancer_.owners_[row] != from_) return false;
            for (std::int32_t w = 0; w < bound.num_weights; ++w)
                if (bound.row_weight(row, w) != bound.row_weight(like_, w)) return false;
            heap_.emplace_back(loss_of(row), row);
            return true;
        }

        std::int32_t loss_of(std::int32_t row) const
        {
            std::int32_t loss = 0;
            for (const auto j : balancer_.graph_.row(row))
                loss += (balancer_.owners_[j] == from_) - (balancer_.owners_[j] == to_);
            return loss;
        }

        const WeightBalancer& balancer_;
        std::int32_t like_, from_, to_;
        std::vector<std::pair<std::int32_t, std::int32_t>> heap_;  // (increase of the cut, row), also outdated ones
    };

    bool keep_whole_;
    std::int64_t work_left_;  // exchanges tried and rows walked over
    std::vector<std::int32_t>& owners_;
    const Csr& graph_;
    BalanceBound bound_;
    std::vector<std::int64_t> weights_, sizes_;
    PartWalk walk_;
};

}  // namespace

bool has_empty_part(const Partition& partition)
{
    return partition.num_rows() >= partition.num_parts && std::ranges::min(part_sizes(partition)) == 0;
}

void balance_weights(Partition& partition, const Csr& graph, const BalanceTarget& balance)
{
    partition.validate("balance_weights", graph.num_rows());
    const auto most_weight = largest_weights_allowed(partition.num_rows(), partition.num_parts, balance);
    if (balance.is_plain()) return balance_parts(partition, graph, balance.imbalance);
    // Without a bound: only empty parts are to be filled here.
    if (has_empty_part(partition)) balance_parts(partition, graph, static_cast<double>(partition.num_parts));
    if (overload(partition, balance, most_weight) > 0)
        WeightBalancer(partition, graph, balance, most_weight, false).run();
}

void balance_weights_of_whole_parts(Partition& partition, const Csr& graph, const BalanceTarget& balance)
{
    const auto most_weight = largest_weights_allowed(partition.num_rows(), partition.num_parts, balance);
    WeightBalancer(partition, graph, balance, most_weight, true).run();
}

}  // namespace meshard
