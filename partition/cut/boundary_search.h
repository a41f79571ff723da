// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/csr.h"
#include "partition/cut/part_walk.h"

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace meshard {

/// Objective and limits of a search.
struct SearchOptions {
    double ghost_share = 0.35;  ///< weight of ghosts relative to cut edges, 0 to 1
    double balance_of_boundaries =
        1.5;  ///< how much higher the price is at the part with the largest boundary than at one with a small boundary
    double sharpness = 4;          ///< the price grows with (boundary / largest boundary) to this power
    std::int32_t patience = 40;    ///< a search ends after this number of moves without a new best
    std::int32_t num_rounds = 10;  ///< largest number of rounds
    double least_gain = 0.001;     ///< a round that reduces the cut by a smaller share is the last
    /// No search starts after this number of rows has been visited; below 0: no limit.
    std::int64_t most_work = -1;
    bool keep_connected = false;  ///< make no move that might disconnect a part
    std::uint64_t seed = 0;
    std::span<const std::uint8_t> is_fixed = {};  ///< for each row: 1 if it must keep its part; or empty
};

/// Upper bounds of the parts' weights. A row has `num_weights` non-negative weights; if there are none, each row weighs
/// one.
struct BalanceBound {
    std::int32_t num_weights = 1;
    std::span<const std::int32_t> row_weights = {};  ///< (rows, num_weights), or empty
    std::span<const std::int64_t> most_weight = {};  ///< (parts, num_weights)

    std::int32_t row_weight(std::int32_t row, std::int32_t w) const
    {
        return row_weights.empty() ? 1 : row_weights[static_cast<std::int64_t>(row) * num_weights + w];
    }
};

/// Moves rows at the boundaries of a partition from part to part to make the boundaries cheaper.
///
/// A search starts at one row and repeatedly makes the best move in its surroundings, even if it makes the partition
/// worse; then it undoes all moves after the best partition found (Fiduccia and Mattheyses 1982, localized as by
/// Sanders and Schulz 2011). The objective is a sum over parts: cut edges and ghosts, each times a price that grows
/// with the part's own numbers, so that the largest boundaries shrink first. A part above its bound only loses rows,
/// and no part loses its last row. A row with more than 256 neighbours is not moved.
class BoundarySearch {
public:
    /// @param owners changed by `run`. The graph, `owners` and the arrays in `bound` must outlive the search.
    BoundarySearch(const Csr& graph, std::vector<std::int32_t>& owners, std::int32_t num_parts,
                   const BalanceBound& bound, const SearchOptions& options);

    /// Runs rounds of searches in random order: the first round starts from all boundary rows, the next ones from the
    /// rows around the moves of the previous round, until a round gains too little.
    void run();

    std::int64_t cut() const;  ///< edges between parts
    /// Number of ghosts of each part, in one layer.
    const std::vector<std::int64_t>& ghosts() const { return ghosts_; }
    std::int64_t work() const { return work_; }  ///< rows visited so far

private:
    struct Candidate {
        float gain;
        std::uint32_t age;  // among equal gains the youngest candidate comes first
        std::int32_t row;

        bool operator<(const Candidate& other) const
        {
            return gain != other.gain ? gain < other.gain : age < other.age;
        }
    };

    // Changes in the numbers of ghosts of two parts.
    struct Changes {
        std::int32_t from = 0;
        std::int32_t to = 0;
    };

    struct Move {
        std::int32_t to = -1;
        float gain = 0;
        Changes changes = {};  // set if ghosts were counted
    };

    struct Done {
        std::int32_t row;
        std::int32_t from;
        Changes changes;
    };

    void count();
    void set_scales();
    void update_price(std::int32_t part);
    void update_prices();
    double fill(std::int32_t part) const;
    bool fits(std::int32_t row, std::int32_t part) const;
    Changes ghost_changes(std::int32_t row, std::int32_t from, std::int32_t to);
    Move best_move(std::int32_t row, bool with_ghosts);
    void change_part(std::int32_t row, std::int32_t to);
    Done move(std::int32_t row, const Move& found);
    void take_back_move();
    void push(std::int32_t row);
    bool is_hub(std::int32_t row) const;  // whether it has too many neighbours to be moved
    std::vector<std::int32_t> boundary_rows() const;
    void descend(std::span<const std::int32_t> starts);
    bool search_from(std::int32_t start);

    const Csr& graph_;
    std::vector<std::int32_t>& owners_;
    std::int32_t num_parts_;
    BalanceBound bound_;
    SearchOptions options_;
    std::vector<std::int64_t> weights_;   // (num_parts, num_weights)
    std::vector<std::int64_t> sizes_;     // rows of each part
    std::vector<std::int64_t> outgoing_;  // edges that leave each part
    std::vector<std::int64_t> ghosts_;
    std::unordered_map<std::int32_t, std::unordered_map<std::int32_t, std::int32_t>>
        neighbors_by_part_;            // counts for each hub, without zeros
    std::vector<double> price_;        // price of an outgoing edge
    std::vector<double> ghost_price_;  // price of a ghost
    double largest_outgoing_ = 1, largest_ghosts_ = 1;
    std::vector<std::int32_t> moved_in_;  // round in which a row was moved last
    std::vector<bool> active_;            // whether a row may be a start in the next round
    std::vector<float> gain_of_;          // gain of a row's youngest candidate
    std::vector<Candidate> heap_;
    std::uint32_t age_ = 0;
    std::vector<Done> moves_;                                      // moves of the current search
    std::vector<std::pair<std::int32_t, std::int32_t>> edges_to_;  // (part, number of edges) of the current row
    std::int32_t round_ = 0;
    std::int64_t work_ = 0;
    std::optional<PartWalk> walk_;  // set if parts must stay connected
};

}  // namespace meshard
