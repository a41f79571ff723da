// SPDX-License-Identifier: Apache-2.0
#include "partition/ghosts/ghost_layer.h"

#include "partition/error.h"
#include "partition/run_on_threads.h"

#include <algorithm>
#include <span>
#include <utility>

namespace meshard {

namespace {

// The neighbours of rows: from `graph`, or as rows with a common item.
struct Neighbors {
    const Csr *graph, *items_of_row = nullptr, *rows_of_item = nullptr;

    std::int64_t num_rows() const { return (items_of_row != nullptr ? items_of_row : graph)->num_rows(); }
};

Neighbors neighbors_of(const GhostRelation& relation)
{
    if (relation.items_of_row.num_rows() == 0) return {&relation.graph};
    return {nullptr, &relation.items_of_row, &relation.rows_of_item};
}

void check_arguments(const char* where, const Neighbors& graph, const Partition& partition, std::int32_t num_layers)
{
    if (num_layers < 0 || num_layers > 255)
        throw InvalidInput("{}: num_layers is {}, expected 0 to 255.", where, num_layers);
    partition.validate(where, graph.num_rows());
}

// Breadth-first search from one part after the other. All parts share the array of marks, so that the cost is
// proportional to the parts' rows.
class RingSearch {
public:
    RingSearch(const Neighbors& neighbors, const Partition& partition)
        : neighbors_(neighbors), reached_by_(partition.owners),
          item_reached_by_(neighbors.rows_of_item != nullptr ? neighbors.rows_of_item->num_rows() : 0, -1)
    {
    }

    GhostLayer layer(std::int32_t part, std::span<const std::int32_t> owned, std::int32_t num_layers)
    {
        found_.clear();
        // If another part owns a row, it is marked with that part, or with the part that reached it last.
        for (const auto i : owned) reached_by_[i] = part;
        auto front = owned;
        for (std::int32_t level = 1; level <= num_layers && !front.empty(); ++level) {
            next_front_.clear();
            const auto reach = [&](std::span<const std::int32_t> rows) {
                for (const auto j : rows)
                    if (reached_by_[j] != part) {
                        reached_by_[j] = part;
                        next_front_.push_back(j);
                        found_.push_back(static_cast<std::uint64_t>(j) << 8 | static_cast<std::uint64_t>(level));
                    }
            };
            for (const auto i : front) {
                if (neighbors_.graph != nullptr) {
                    reach(neighbors_.graph->row(i));
                    continue;
                }
                for (const auto item : neighbors_.items_of_row->row(i))
                    if (std::exchange(item_reached_by_[item], part) != part) reach(neighbors_.rows_of_item->row(item));
            }
            front_.swap(next_front_);
            front = front_;
        }
        std::ranges::sort(found_);

        GhostLayer layer;
        layer.rows.reserve(found_.size());
        layer.levels.reserve(found_.size());
        for (const auto word : found_) {
            layer.rows.push_back(static_cast<std::int32_t>(word >> 8));
            layer.levels.push_back(static_cast<std::uint8_t>(word & 255));
        }
        return layer;
    }

private:
    Neighbors neighbors_;
    std::vector<std::int32_t> reached_by_;       // last part that owned or reached the row
    std::vector<std::int32_t> item_reached_by_;  // last part that reached the item's rows
    std::vector<std::uint64_t> found_;           // row and level in one word, sorted by row
    std::vector<std::int32_t> front_, next_front_;
};

std::vector<GhostLayer> layers_by(const Neighbors& neighbors, const Partition& partition, std::int32_t num_layers,
                                  std::int32_t num_threads)
{
    check_arguments("ghost_layers", neighbors, partition, num_layers);
    const auto rows = rows_by_part(partition);
    std::vector<GhostLayer> layers(partition.num_parts);
    run_on_threads(num_threads, [&](const std::function<std::int64_t()>& next) {
        RingSearch search(neighbors, partition);
        for (auto part = next(); part < partition.num_parts; part = next())
            layers[part] = search.layer(static_cast<std::int32_t>(part), rows.row(part), num_layers);
    });
    return layers;
}

}  // namespace

std::vector<GhostLayer> ghost_layers(const Csr& graph, const Partition& partition, std::int32_t num_layers,
                                     std::int32_t num_threads)
{
    return layers_by({&graph}, partition, num_layers, num_threads);
}

std::vector<GhostLayer> ghost_layers(const GhostRelation& relation, const Partition& partition, std::int32_t num_layers,
                                     std::int32_t num_threads)
{
    return layers_by(neighbors_of(relation), partition, num_layers, num_threads);
}

GhostLayer ghost_layer(const Csr& graph, const Partition& partition, std::int32_t part, std::int32_t num_layers)
{
    check_arguments("ghost_layer", {&graph}, partition, num_layers);
    if (part < 0 || part >= partition.num_parts)
        throw InvalidInput("ghost_layer: part is {}, expected 0 to {}.", part, partition.num_parts - 1);
    return RingSearch({&graph}, partition).layer(part, rows_by_part(partition).row(part), num_layers);
}

}  // namespace meshard
