// SPDX-License-Identifier: Apache-2.0
#include "partition/cut/boundary_search.h"

#include "partition/random_numbers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace meshard {

namespace {

constexpr float never = -std::numeric_limits<float>::infinity();
constexpr double rounding = 1e-4;  // smaller gains are treated as zero
constexpr int num_descents = 10;

// A row with more neighbours than this keeps its part: updating the counts after its move would take longer than the
// moves around it gain. Its neighbours are counted by part, so that their own moves need not visit all of them.
constexpr std::size_t most_neighbors_of_moved = 256;

// Neighbours that count as one unit of work, besides one for each row, so that the limit of work also bounds the time
// on graphs with many neighbours for each row.
constexpr std::int64_t neighbors_a_unit = 32;
constexpr std::int64_t second_neighbors_a_unit = 1024;

double largest_of(const std::vector<std::int64_t>& values)
{
    return static_cast<double>(std::max<std::int64_t>(1, std::ranges::max(values)));
}

}  // namespace

BoundarySearch::BoundarySearch(const Csr& graph, std::vector<std::int32_t>& owners, std::int32_t num_parts,
                               const BalanceBound& bound, const SearchOptions& options)
    : graph_(graph), owners_(owners), num_parts_(num_parts), bound_(bound), options_(options),
      moved_in_(owners.size(), 0), active_(owners.size(), true), gain_of_(owners.size(), never)
{
    constexpr std::size_t longest_walk = 500;
    if (options.keep_connected) walk_.emplace(graph, owners, longest_walk);
    count();
    set_scales();
    update_prices();
}

void BoundarySearch::count()
{
    weights_.assign(static_cast<std::size_t>(num_parts_) * bound_.num_weights, 0);
    sizes_.assign(num_parts_, 0);
    outgoing_.assign(num_parts_, 0);
    ghosts_.assign(num_parts_, 0);
    price_.assign(num_parts_, 0);
    ghost_price_.assign(num_parts_, 0);
    std::vector<std::int32_t> seen_by(num_parts_, -1);  // for each part the last row that has a neighbour in it
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(owners_.size()); ++i) {
        const auto part = owners_[i];
        if (is_hub(i))
            for (const auto j : graph_.row(i)) ++neighbors_by_part_[i][owners_[j]];
        ++sizes_[part];
        for (std::int32_t w = 0; w < bound_.num_weights; ++w)
            weights_[static_cast<std::size_t>(part) * bound_.num_weights + w] += bound_.row_weight(i, w);
        for (const auto j : graph_.row(i)) {
            const auto other = owners_[j];
            if (other == part) continue;
            ++outgoing_[part];
            if (std::exchange(seen_by[other], i) != i) ++ghosts_[other];
        }
    }
}

void BoundarySearch::set_scales()
{
    largest_outgoing_ = largest_of(outgoing_);
    largest_ghosts_ = largest_of(ghosts_);
}

void BoundarySearch::update_price(std::int32_t part)
{
    const auto dearer = [&](std::int64_t value, double largest) {
        return 1 + options_.balance_of_boundaries * std::pow(static_cast<double>(value) / largest, options_.sharpness);
    };
    // Half, because a cut edge and, on flat boundaries, a ghost count on both sides.
    price_[part] = 0.5 * (1 - options_.ghost_share) * dearer(outgoing_[part], largest_outgoing_);
    ghost_price_[part] = 0.5 * options_.ghost_share * dearer(ghosts_[part], largest_ghosts_);
}

void BoundarySearch::update_prices()
{
    for (std::int32_t part = 0; part < num_parts_; ++part) update_price(part);
}

// Weight of the part divided by its bound; with several weights, the largest ratio.
double BoundarySearch::fill(std::int32_t part) const
{
    double most = 0;
    for (std::int32_t w = 0; w < bound_.num_weights; ++w) {
        const auto at = static_cast<std::size_t>(part) * bound_.num_weights + w;
        most = std::max(most, static_cast<double>(weights_[at]) /
                                  static_cast<double>(std::max<std::int64_t>(bound_.most_weight[at], 1)));
    }
    return most;
}

bool BoundarySearch::fits(std::int32_t row, std::int32_t part) const
{
    for (std::int32_t w = 0; w < bound_.num_weights; ++w) {
        const auto at = static_cast<std::size_t>(part) * bound_.num_weights + w;
        if (weights_[at] + bound_.row_weight(row, w) > bound_.most_weight[at]) return false;
    }
    return true;
}

// Changes in the numbers of ghosts of the two parts when `row`, a ghost of `to`, moves there; other parts' ghosts stay
// the same.
BoundarySearch::Changes BoundarySearch::ghost_changes(std::int32_t row, std::int32_t from, std::int32_t to)
{
    Changes changes{0, -1};
    bool is_seen_by_from = false;
    std::int64_t num_visited = 0;
    for (const auto j : graph_.row(row)) {
        const auto owner = owners_[j];
        is_seen_by_from |= owner == from;
        // Whether each part has `j` as a row or ghost without `row`.
        bool from_sees = owner == from, to_sees = owner == to;
        if (is_hub(j)) {
            const auto& counts = neighbors_by_part_.at(j);
            from_sees |= counts.at(from) > 1;  // `row` itself is one of them
            to_sees |= counts.contains(to);
        } else {
            num_visited += std::ssize(graph_.row(j));
            for (const auto k : graph_.row(j)) {
                if (from_sees && to_sees) break;
                if (k == row) continue;
                from_sees |= owners_[k] == from;
                to_sees |= owners_[k] == to;
            }
        }
        changes.from -= !from_sees;
        changes.to += !to_sees;
    }
    changes.from += is_seen_by_from;
    work_ += num_visited / second_neighbors_a_unit;
    return changes;
}

BoundarySearch::Move BoundarySearch::best_move(std::int32_t row, bool with_ghosts)
{
    ++work_;
    if ((!options_.is_fixed.empty() && options_.is_fixed[row] != 0) || is_hub(row)) return {.gain = never};
    work_ += std::ssize(graph_.row(row)) / neighbors_a_unit;
    const auto from = owners_[row];
    edges_to_.clear();
    std::int32_t inside = 0, degree = 0;
    for (const auto j : graph_.row(row)) {
        const auto part = owners_[j];
        ++degree;
        if (part == from) {
            ++inside;
            continue;
        }
        const auto at = std::ranges::find(edges_to_, part, &std::pair<std::int32_t, std::int32_t>::first);
        if (at == edges_to_.end())
            edges_to_.emplace_back(part, 1);
        else
            ++at->second;
    }
    Move best{.gain = never};
    if (edges_to_.empty() || sizes_[from] == 1) return best;
    for (const auto& [part, edges] : edges_to_) {
        if (!fits(row, part)) continue;
        auto gain = price_[from] * (degree - 2 * inside) + price_[part] * (2 * edges - degree);
        Changes changes;
        if (with_ghosts) {
            changes = ghost_changes(row, from, part);
            gain -= ghost_price_[from] * changes.from + ghost_price_[part] * changes.to;
        }
        if (gain > best.gain) best = {part, static_cast<float>(gain), changes};
    }
    return best;
}

void BoundarySearch::change_part(std::int32_t row, std::int32_t to)
{
    const auto from = owners_[row];
    for (const auto j : graph_.row(row)) {
        const auto part = owners_[j];
        outgoing_[from] += part == from ? 1 : -1;
        outgoing_[to] += part == to ? -1 : 1;
        if (!is_hub(j)) continue;
        auto& counts = neighbors_by_part_.at(j);
        ++counts[to];
        if (--counts[from] == 0) counts.erase(from);
    }
    --sizes_[from];
    ++sizes_[to];
    for (std::int32_t w = 0; w < bound_.num_weights; ++w) {
        const auto weight = bound_.row_weight(row, w);
        weights_[static_cast<std::size_t>(from) * bound_.num_weights + w] -= weight;
        weights_[static_cast<std::size_t>(to) * bound_.num_weights + w] += weight;
    }
    owners_[row] = to;
}

// Moves a row to a part that has it as a ghost.
BoundarySearch::Done BoundarySearch::move(std::int32_t row, const Move& found)
{
    const auto from = owners_[row];
    const auto changes = options_.ghost_share > 0 ? found.changes : ghost_changes(row, from, found.to);
    ghosts_[from] += changes.from;
    ghosts_[found.to] += changes.to;
    change_part(row, found.to);
    return {row, from, changes};
}

// Undoes the last move: its surroundings are as they were then, so that its changes need not be counted again.
void BoundarySearch::take_back_move()
{
    const auto [row, before, changes] = moves_.back();
    moves_.pop_back();
    ghosts_[before] -= changes.from;
    ghosts_[owners_[row]] -= changes.to;
    change_part(row, before);
}

// Adds the row to the heap with its gain in cut edges only; ghosts, whose count costs several times as much, are
// counted when the row is taken from the heap.
void BoundarySearch::push(std::int32_t row)
{
    const auto found = best_move(row, false);
    gain_of_[row] = found.gain;
    if (found.to < 0) return;
    heap_.push_back({found.gain, age_++, row});
    std::push_heap(heap_.begin(), heap_.end());
}

bool BoundarySearch::is_hub(std::int32_t row) const
{
    return graph_.row(row).size() > most_neighbors_of_moved;
}

std::vector<std::int32_t> BoundarySearch::boundary_rows() const
{
    std::vector<std::int32_t> rows;
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(owners_.size()); ++i)
        if (active_[i] && std::ranges::any_of(graph_.row(i), [&](auto j) { return owners_[j] != owners_[i]; }))
            rows.push_back(i);
    return rows;
}

// Makes moves that gain at once, and adds the neighbours of moved rows: the cheap part of the work, before the
// searches.
void BoundarySearch::descend(std::span<const std::int32_t> starts)
{
    std::vector<std::int32_t> front(starts.begin(), starts.end()), next;
    std::vector<bool> waits(owners_.size(), false);
    for (const auto row : front) waits[row] = true;
    std::int64_t num_moves = 0;
    for (int pass = 0; pass < num_descents && !front.empty(); ++pass) {
        next.clear();
        for (const auto row : front) {
            waits[row] = false;
            const auto found = best_move(row, options_.ghost_share > 0);
            if (found.to < 0 || found.gain < -rounding) continue;
            // A move without gain or loss is made if it goes to a less full part.
            if (found.gain < rounding &&
                (sizes_[found.to] + 2 > sizes_[owners_[row]] || fill(found.to) > fill(owners_[row])))
                continue;
            if (walk_ && walk_->may_break(row)) continue;
            move(row, found);
            if (++num_moves % 64 == 0) update_prices();
            for (const auto j : graph_.row(row))
                if (!waits[j]) {
                    waits[j] = true;
                    next.push_back(j);
                }
        }
        front.swap(next);
    }
}

bool BoundarySearch::search_from(std::int32_t start)
{
    heap_.clear();
    moves_.clear();
    push(start);
    double sum = 0, best_sum = 0;
    std::size_t best_length = 0;
    for (std::int32_t fruitless = 0; !heap_.empty() && fruitless < options_.patience;) {
        const auto top = heap_.front();
        std::pop_heap(heap_.begin(), heap_.end());
        heap_.pop_back();
        if (moved_in_[top.row] == round_ || gain_of_[top.row] != top.gain) continue;
        const auto found = best_move(top.row, options_.ghost_share > 0);
        if (found.to < 0) continue;
        if (found.gain < top.gain - rounding && !heap_.empty() && found.gain < heap_.front().gain) {
            gain_of_[top.row] = found.gain;
            heap_.push_back({found.gain, age_++, top.row});
            std::push_heap(heap_.begin(), heap_.end());
            continue;
        }
        if (walk_ && walk_->may_break(top.row)) continue;
        moves_.push_back(move(top.row, found));
        moved_in_[top.row] = round_;
        sum += found.gain;
        if (sum > best_sum + rounding) {
            best_sum = sum;
            best_length = moves_.size();
            fruitless = 0;
        } else {
            ++fruitless;
        }
        for (const auto j : graph_.row(top.row))
            if (moved_in_[j] != round_) push(j);
    }
    while (moves_.size() > best_length) take_back_move();
    for (const auto& [row, before, changes] : moves_) {
        active_[row] = true;
        for (const auto j : graph_.row(row)) active_[j] = true;
        update_price(before);
        update_price(owners_[row]);
    }
    return best_length > 0;
}

void BoundarySearch::run()
{
    RandomNumbers random(options_.seed);
    for (std::int32_t r = 0; r < options_.num_rounds; ++r) {
        ++round_;
        age_ = 0;
        auto starts = boundary_rows();
        active_.assign(active_.size(), false);
        for (auto k = static_cast<std::uint32_t>(starts.size()); k > 1; --k)
            std::swap(starts[k - 1], starts[random.below(k)]);
        const auto cut_before = cut();
        set_scales();
        update_prices();
        if (r == 0) {
            descend(starts);
            set_scales();
            update_prices();
        }
        bool found = false;
        for (const auto start : starts) {
            if (options_.most_work >= 0 && work_ > options_.most_work) return;
            if (moved_in_[start] != round_) found |= search_from(start);
        }
        const auto gain = static_cast<double>(cut_before - cut());
        if (!found || (r > 0 && gain < options_.least_gain * static_cast<double>(cut_before))) break;
    }
}

std::int64_t BoundarySearch::cut() const
{
    std::int64_t sum = 0;
    for (const auto edges : outgoing_) sum += edges;
    return sum / 2;
}

}  // namespace meshard
