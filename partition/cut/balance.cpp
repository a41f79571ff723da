// SPDX-License-Identifier: Apache-2.0
#include "partition/cut/balance.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace meshard {

namespace {

// The rows in breadth-first order, connected components in the order of their first rows.
std::vector<std::int32_t> breadth_first_order(const Csr& graph)
{
    std::vector<std::int32_t> order;
    order.reserve(graph.num_rows());
    std::vector<bool> seen(graph.num_rows(), false);
    for (std::int64_t start = 0; start < graph.num_rows(); ++start) {
        if (seen[start]) continue;
        seen[start] = true;
        order.push_back(static_cast<std::int32_t>(start));
        for (auto next = order.size() - 1; next < order.size(); ++next)
            for (const auto j : graph.row(order[next]))
                if (!seen[j]) {
                    seen[j] = true;
                    order.push_back(j);
                }
    }
    return order;
}

class Balancer {
public:
    Balancer(Partition& partition, const Csr& graph, std::int64_t most_rows)
        : graph_(graph), owners_(partition.owners), most_rows_(most_rows), rows_(partition.num_parts),
          seen_row_(partition.num_rows(), 0), came_from_(partition.num_parts, -1)
    {
        for (std::size_t i = 0; i < owners_.size(); ++i) rows_[owners_[i]].push_back(static_cast<std::int32_t>(i));
    }

    void fill_empty_parts()
    {
        for (std::int32_t part = 0; part < num_parts(); ++part) {
            if (!rows_[part].empty()) continue;
            const auto largest = largest_part();
            if (size(largest) < 2) return;
            move_rows(largest, part, size(largest) / 2);
        }
    }

    void shrink_large_parts()
    {
        for (std::int32_t part = 0; part < num_parts(); ++part)
            while (size(part) > most_rows_) {
                const auto chain = chain_to_room(part);
                auto count = std::min(size(part) - most_rows_, most_rows_ - size(chain.back()));
                for (std::size_t k = 1; k + 1 < chain.size(); ++k) count = std::min(count, size(chain[k]));
                // Moved from the end of the chain, so that no part of the chain exceeds its bound in between.
                for (auto k = chain.size() - 1; k > 0; --k) move_rows(chain[k - 1], chain[k], count);
            }
    }

private:
    std::int32_t num_parts() const { return static_cast<std::int32_t>(rows_.size()); }
    std::int64_t size(std::int32_t part) const { return std::ssize(rows_[part]); }

    std::int32_t largest_part() const
    {
        return static_cast<std::int32_t>(std::ranges::max_element(rows_, {}, [](const auto& r) { return r.size(); }) -
                                         rows_.begin());
    }

    std::int32_t smallest_part() const
    {
        return static_cast<std::int32_t>(std::ranges::min_element(rows_, {}, [](const auto& r) { return r.size(); }) -
                                         rows_.begin());
    }

    // A chain of neighbouring parts from `part` to the nearest one that has room; if there is none, `part` and the
    // smallest part.
    std::vector<std::int32_t> chain_to_room(std::int32_t part)
    {
        std::vector<std::int32_t> reached{part};
        came_from_[part] = part;
        std::int32_t with_room = -1;
        for (std::size_t next = 0; next < reached.size() && with_room < 0; ++next) {
            const auto from = reached[next];
            for (const auto i : rows_[from])
                for (const auto j : graph_.row(i)) {
                    const auto to = owners_[j];
                    if (came_from_[to] >= 0) continue;
                    came_from_[to] = from;
                    reached.push_back(to);
                    if (size(to) < most_rows_ && (with_room < 0 || size(to) < size(with_room))) with_room = to;
                }
        }
        std::vector<std::int32_t> chain;
        if (with_room < 0)
            chain = {part, smallest_part()};
        else {
            for (auto at = with_room; at != part; at = came_from_[at]) chain.push_back(at);
            chain.push_back(part);
            std::ranges::reverse(chain);
        }
        for (const auto p : reached) came_from_[p] = -1;
        return chain;
    }

    // Moves rows in rings from the boundary with `to` inwards (or, without a common boundary, from the part's first row
    // with the fewest neighbours in it), so that the moved rows are connected if the part is.
    void move_rows(std::int32_t from, std::int32_t to, std::int64_t count)
    {
        ++stamp_;
        std::vector<std::pair<std::int64_t, std::int32_t>> boundary;  // (edges kept minus edges healed, row)
        std::pair<std::int64_t, std::int32_t> loosest{graph_.num_rows(), -1};
        for (const auto i : rows_[from]) {
            std::int64_t inside = 0, across = 0;
            for (const auto j : graph_.row(i)) {
                inside += owners_[j] == from;
                across += owners_[j] == to;
            }
            if (across > 0) boundary.emplace_back(inside - across, i);
            loosest = std::min(loosest, {inside, i});
        }
        if (boundary.empty()) boundary.push_back(loosest);
        std::ranges::sort(boundary);

        std::vector<std::int32_t> taken;
        const auto take = [&](std::int32_t i) {
            if (seen_row_[i] == stamp_ || std::ssize(taken) == count) return;
            seen_row_[i] = stamp_;
            taken.push_back(i);
        };
        for (const auto& [loss, i] : boundary) take(i);
        auto rest = rows_[from].begin();  // needed for parts in several pieces
        for (std::size_t next = 0; std::ssize(taken) < count; ++next) {
            while (next == taken.size()) take(*rest++);
            for (const auto j : graph_.row(taken[next]))
                if (owners_[j] == from) take(j);
        }
        for (const auto i : taken) owners_[i] = to;
        std::erase_if(rows_[from], [&](std::int32_t i) { return owners_[i] != from; });
        const auto middle = static_cast<std::ptrdiff_t>(rows_[to].size());
        std::ranges::sort(taken);
        rows_[to].insert(rows_[to].end(), taken.begin(), taken.end());
        std::inplace_merge(rows_[to].begin(), rows_[to].begin() + middle, rows_[to].end());
    }

    const Csr& graph_;
    std::vector<std::int32_t>& owners_;
    std::int64_t most_rows_;
    std::vector<std::vector<std::int32_t>> rows_;  // rows of each part, ascending
    std::vector<std::int32_t> seen_row_;
    std::vector<std::int32_t> came_from_;
    std::int32_t stamp_ = 0;
};

}  // namespace

std::int64_t largest_part_allowed(std::int64_t num_rows, std::int32_t num_parts, double imbalance)
{
    const auto rounded_up = (num_rows + num_parts - 1) / num_parts;
    const auto allowed = std::floor(imbalance * static_cast<double>(num_rows) / num_parts);
    return allowed >= static_cast<double>(num_rows) ? num_rows
                                                    : std::max(rounded_up, static_cast<std::int64_t>(allowed));
}

std::vector<std::int32_t> breadth_first_blocks(const Csr& graph, std::int32_t num_parts)
{
    const auto num_rows = graph.num_rows();
    const auto num_blocks = std::min<std::int64_t>(num_parts, num_rows);
    std::vector<std::int32_t> owners(num_rows);
    const auto order = breadth_first_order(graph);
    for (std::int64_t k = 0; k < num_rows; ++k) owners[order[k]] = static_cast<std::int32_t>(k * num_blocks / num_rows);
    return owners;
}

void balance_parts(Partition& partition, const Csr& graph, double imbalance)
{
    const auto num_rows = partition.num_rows();
    const auto sizes = part_sizes(partition);
    const auto [smallest, largest] = std::ranges::minmax(sizes);
    const auto most_rows = largest_part_allowed(num_rows, partition.num_parts, imbalance);
    const bool has_gap = smallest == 0 && num_rows >= partition.num_parts;
    if (largest <= most_rows && !has_gap) return;
    Balancer balancer(partition, graph, most_rows);
    if (has_gap) balancer.fill_empty_parts();
    balancer.shrink_large_parts();
}

}  // namespace meshard
