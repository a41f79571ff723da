// SPDX-License-Identifier: Apache-2.0
#include "sharding/windows/window_ghosts.h"

#include "partition/lists.h"

#include <algorithm>
#include <array>
#include <optional>

namespace meshard {

namespace {

// A point (the second number is -1) or an edge.
using Item = std::array<std::int32_t, 2>;

// A part that has a cell of the previous layer at an item.
struct Touch {
    Item item;
    std::int32_t part;

    auto operator<=>(const Touch&) const = default;
};

struct PointTouch {
    std::int32_t point, part;

    auto operator<=>(const PointTouch&) const = default;
};

template <class T>
void make_unique(std::vector<T>& values)
{
    sort_unique(values);
}

int home_of(const Item& item, int num_ranks)
{
    const auto hash =
        (static_cast<std::uint64_t>(item[0]) * 0x9e3779b97f4a7c15u ^ static_cast<std::uint32_t>(item[1])) *
        0x9e3779b97f4a7c15u;
    return static_cast<int>((hash >> 33) % static_cast<std::uint64_t>(num_ranks));
}

// The items of the cells of a window.
struct WindowItems {
    Csr of_cells;
    std::vector<Item> items;

    WindowItems(const Mesh& cells, GhostNeighbors neighbors)
    {
        if (neighbors == GhostNeighbors::Edge) {
            auto edges = cell_edges(cells);
            of_cells = std::move(edges.of_cells);
            items = std::move(edges.ends);
            return;
        }
        of_cells = cells.cells;
        for (const auto point : of_cells.indices) items.push_back({point, -1});
        make_unique(items);
        for (auto& point : of_cells.indices)
            point = static_cast<std::int32_t>(std::ranges::lower_bound(items, Item{point, -1}) - items.begin());
    }

    std::vector<std::int32_t> points() const
    {
        std::vector<std::int32_t> found;
        for (const auto& item : items)
            for (const auto point : item)
                if (point >= 0) found.push_back(point);
        make_unique(found);
        return found;
    }

    // Returns for each item whether all of its points are flagged.
    std::vector<bool> all_flagged(std::span<const std::int32_t> points, std::span<const std::uint8_t> flags) const
    {
        std::vector<bool> result(items.size(), true);
        for (std::size_t i = 0; i < items.size(); ++i)
            for (const auto point : items[i])
                if (point >= 0 && flags[std::ranges::lower_bound(points, point) - points.begin()] == 0)
                    result[i] = false;
        return result;
    }
};

class ItemGhosts {
public:
    ItemGhosts(const CurveWindows& windows, RankMessages& messages, std::span<const std::int32_t> owners,
               GhostNeighbors neighbors)
        : windows_(windows), messages_(messages), owners_(owners), neighbors_(neighbors)
    {
    }

    std::vector<GhostMark> find(std::int32_t num_layers)
    {
        for (level_ = 1; level_ <= num_layers; ++level_) {
            if (level_ == 1)
                flag_points_between_parts();
            else
                flag_points_of_last_layer();
            gather_touches();
            mark_next_layer();
        }
        return std::move(marks_);
    }

private:
    // In each round calls `work(window)`, which returns lists for all ranks, and exchanges these; a rank without a
    // window in the round gets a number past its last one.
    template <class T, class F>
    void in_rounds(F&& work, std::vector<T>& received)
    {
        received.clear();
        for (std::int32_t round = 0; round < windows_.num_rounds(); ++round) {
            const auto window = windows_.first_window() + round;
            for (auto& part : exchange(messages_, work(window))) append(received, part);
        }
    }

    bool is_here(std::int32_t window) const { return window < windows_.end_window(); }

    WindowItems items_of(std::int32_t window) const
    {
        WindowItems items(windows_.cells(window), neighbors_);
        windows_.mesh().release_pages();
        return items;
    }

    std::int64_t place(std::int32_t window) const
    {
        return windows_.begin(window) - windows_.positions().begin(messages_.rank());
    }

    // Calls `work(cell, part)` for the marks of the previous layer in a window.
    template <class F>
    void each_mark_before(std::int32_t window, F&& work) const
    {
        const auto begin = static_cast<std::int32_t>(windows_.begin(window));
        const auto end = begin + static_cast<std::int32_t>(windows_.size(window));
        for (auto mark = std::ranges::lower_bound(marks_, begin, {}, &GhostMark::position);
             mark != marks_.end() && mark->position < end; ++mark)
            if (mark->level == level_ - 1) work(mark->position - begin, mark->part);
    }

    // Flags the points that cells of several parts use.
    void flag_points_between_parts()
    {
        const auto rank = messages_.rank();
        std::vector<std::int32_t> first_part(windows_.points().size(rank), -1);
        is_front_.assign(windows_.points().size(rank), 0);
        for (std::int32_t round = 0; round < windows_.num_rounds(); ++round) {
            const auto window = windows_.first_window() + round;
            std::vector<std::vector<PointTouch>> to(messages_.size());
            if (is_here(window)) {
                const Mesh cells = windows_.cells(window);
                for (std::int64_t cell = 0; cell < cells.num_cells(); ++cell)
                    for (const auto point : cells.cells.row(cell))
                        to[windows_.points().rank_of(point)].push_back({point, owners_[place(window) + cell]});
                windows_.mesh().release_pages();
                for (auto& touches : to) make_unique(touches);
            }
            for (const auto& part : exchange(messages_, std::move(to)))
                for (const auto& touch : part) {
                    const auto point = touch.point - windows_.points().begin(rank);
                    if (first_part[point] < 0) first_part[point] = touch.part;
                    if (first_part[point] != touch.part) is_front_[point] = 1;
                }
        }
    }

    void flag_points_of_last_layer()
    {
        std::ranges::fill(is_front_, std::uint8_t{0});
        std::vector<std::int32_t> points;
        in_rounds(
            [&](std::int32_t window) {
                std::vector<std::vector<std::int32_t>> to(messages_.size());
                if (!is_here(window)) return to;
                std::vector<std::int32_t> ids;
                each_mark_before(window,
                                 [&](std::int32_t cell, std::int32_t) { ids.push_back(windows_.ids(window)[cell]); });
                make_unique(ids);
                for (const auto point : windows_.mesh().cells(ids).cells.indices)
                    to[windows_.points().rank_of(point)].push_back(point);
                for (auto& list : to) make_unique(list);
                return to;
            },
            points);
        for (const auto point : points) is_front_[point - windows_.points().begin(messages_.rank())] = 1;
    }

    // Returns for each item of a window whether all of its points are flagged. Collective.
    std::vector<bool> front_of(std::int32_t window, const WindowItems* items)
    {
        const auto points = items != nullptr ? items->points() : std::vector<std::int32_t>{};
        const auto flags = fetch<std::uint8_t>(messages_, windows_.points(), is_front_, points);
        return is_here(window) ? items->all_flagged(points, flags) : std::vector<bool>{};
    }

    void gather_touches()
    {
        in_rounds(
            [&](std::int32_t window) {
                const auto items = is_here(window) ? std::optional(items_of(window)) : std::nullopt;
                const auto is_front = front_of(window, items ? &*items : nullptr);
                std::vector<std::vector<Touch>> to(messages_.size());
                if (!items) return to;
                const auto touch = [&](std::int64_t cell, std::int32_t part) {
                    for (const auto i : items->of_cells.row(cell))
                        if (is_front[i])
                            to[home_of(items->items[i], messages_.size())].push_back({items->items[i], part});
                };
                if (level_ == 1)
                    for (std::int64_t cell = 0; cell < windows_.size(window); ++cell)
                        touch(cell, owners_[place(window) + cell]);
                else
                    each_mark_before(window, touch);
                for (auto& touches : to) make_unique(touches);
                return to;
            },
            touches_);
        make_unique(touches_);
    }

    void mark_next_layer()
    {
        std::vector<GhostMark> found;
        for (std::int32_t round = 0; round < windows_.num_rounds(); ++round) {
            const auto window = windows_.first_window() + round;
            const auto items = is_here(window) ? std::optional(items_of(window)) : std::nullopt;
            const auto is_front = front_of(window, items ? &*items : nullptr);
            std::vector<std::vector<Item>> asked(messages_.size());
            for (std::size_t i = 0; i < is_front.size(); ++i)
                if (is_front[i]) asked[home_of(items->items[i], messages_.size())].push_back(items->items[i]);
            std::vector<std::vector<Touch>> answers(messages_.size());
            const auto wanted = exchange(messages_, std::move(asked));
            for (int r = 0; r < messages_.size(); ++r)
                for (const auto& item : wanted[r])
                    for (auto touch = std::ranges::lower_bound(touches_, item, {}, &Touch::item);
                         touch != touches_.end() && touch->item == item; ++touch)
                        answers[r].push_back(*touch);
            std::vector<Touch> touches;
            for (auto& part : exchange(messages_, std::move(answers))) append(touches, part);
            if (!items) continue;
            std::ranges::sort(touches);
            std::vector<std::int32_t> parts;
            for (std::int64_t cell = 0; cell < windows_.size(window); ++cell) {
                parts.clear();
                for (const auto i : items->of_cells.row(cell)) {
                    if (!is_front[i]) continue;
                    const auto& item = items->items[i];
                    for (auto touch = std::ranges::lower_bound(touches, item, {}, &Touch::item);
                         touch != touches.end() && touch->item == item; ++touch)
                        if (touch->part != owners_[place(window) + cell]) parts.push_back(touch->part);
                }
                make_unique(parts);
                const auto position = static_cast<std::int32_t>(windows_.begin(window) + cell);
                for (const auto part : parts)
                    if (!is_marked(position, part)) found.push_back({position, part, level_});
            }
        }
        append(marks_, found);
        std::ranges::sort(marks_, {}, [](const GhostMark& mark) { return PointTouch{mark.position, mark.part}; });
    }

    bool is_marked(std::int32_t position, std::int32_t part) const
    {
        return std::ranges::binary_search(marks_, PointTouch{position, part}, {},
                                          [](const GhostMark& mark) { return PointTouch{mark.position, mark.part}; });
    }

    const CurveWindows& windows_;
    RankMessages& messages_;
    std::span<const std::int32_t> owners_;
    GhostNeighbors neighbors_;
    std::int32_t level_ = 0;
    std::vector<std::uint8_t> is_front_;  // flags of this rank's points
    std::vector<Touch> touches_;          // touches of the items whose home is this rank
    std::vector<GhostMark> marks_;        // sorted by position, then part
};

}  // namespace

std::vector<GhostMark> ghosts_by_points_or_edges(const CurveWindows& windows, RankMessages& messages,
                                                 std::span<const std::int32_t> owners, GhostNeighbors neighbors,
                                                 std::int32_t num_layers)
{
    return ItemGhosts(windows, messages, owners, neighbors).find(num_layers);
}

}  // namespace meshard
