// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/csr.h"
#include "partition/cut/part_walk.h"

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace meshard {

/// How far a search goes and what it looks for.
struct SearchOptions {
    double ghost_share = 0.35;           ///< what ghosts count beside cut edges, 0 to 1
    double balance_of_boundaries = 1.5;  ///< how much dearer the largest part boundary is than a small one
    double sharpness = 4;                ///< power of (boundary / largest boundary) that the price grows with
    std::int32_t patience = 40;          ///< moves in a row without a new best before a search gives up
    std::int32_t num_rounds = 10;        ///< at most
    double least_gain = 0.001;           ///< a round that lowers the cut by a smaller share is the last
    std::int64_t most_work = -1;         ///< rows looked at before the last search begins; below 0: no limit
    bool keep_connected = false;         ///< no move that might take a part to pieces
    std::uint64_t seed = 0;
    std::span<const std::uint8_t> is_fixed = {};  ///< of each row 1 if it must stay where it is; or none
};

/// What parts may weigh. A row has `num_weights` weights, none of them negative; no weights: each row weighs one.
struct BalanceBound {
    std::int32_t num_weights = 1;
    std::span<const std::int32_t> row_weights = {};  ///< (rows, num_weights), or none
    std::span<const std::int64_t> most_weight = {};  ///< (parts, num_weights)

    std::int32_t row_weight(std::int32_t row, std::int32_t w) const
    {
        return row_weights.empty() ? 1 : row_weights[static_cast<std::int64_t>(row) * num_weights + w];
    }
};

/// Moves rows at the boundaries of a partition from part to part to make the boundaries cheaper.
///
/// One search begins at one row, follows the best move after the other in its surroundings, good or bad, and takes back
/// all after the best point that it has seen (Fiduccia and Mattheyses 1982, localized as by Sanders and Schulz 2011).
/// What is lowered is a sum over parts: cut edges and ghosts, each times a price that grows with the part's own, so that
/// the largest shrink first. A part above its bound only loses rows, and none loses its last.
class BoundarySearch {
public:
    /// @param owners changed by `run`. It, the graph and what `bound` looks at must outlive the search.
    BoundarySearch(const Csr& graph, std::vector<std::int32_t>& owners, std::int32_t num_parts,
                   const BalanceBound& bound, const SearchOptions& options);

    /// Rounds of searches in random order: the first from all boundary rows, the next from those around the moves of the
    /// one before, until a round finds little.
    void run();

    std::int64_t cut() const; ///< edges between parts
    const std::vector<std::int64_t>& ghosts() const { return ghosts_; } ///< rows that each part sees
    std::int64_t work() const { return work_; } ///< rows looked at so far

private:
    struct Candidate {
        float gain;
        std::uint32_t age; // of equals the youngest comes first
        std::int32_t row;

        bool operator<(const Candidate& other) const
        {
            return gain != other.gain ? gain < other.gain : age < other.age;
        }
    };

    // Of the ghosts of two parts.
    struct Changes {
        std::int32_t from = 0;
        std::int32_t to = 0;
    };

    struct Move {
        std::int32_t to = -1;
        float gain = 0;
        Changes changes = {}; // if ghosts were looked at
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
    Changes ghost_changes(std::int32_t row, std::int32_t from, std::int32_t to) const;
    Move best_move(std::int32_t row, bool with_ghosts);
    void change_part(std::int32_t row, std::int32_t to);
    Done move(std::int32_t row, const Move& found);
    void take_back_move();
    void push(std::int32_t row);
    std::vector<std::int32_t> boundary_rows() const;
    void descend(std::span<const std::int32_t> starts);
    bool search_from(std::int32_t start);

    const Csr& graph_;
    std::vector<std::int32_t>& owners_;
    std::int32_t num_parts_;
    BalanceBound bound_;
    SearchOptions options_;
    std::vector<std::int64_t> weights_;  // (num_parts, num_weights)
    std::vector<std::int64_t> sizes_;    // rows of each part
    std::vector<std::int64_t> outgoing_; // edges that leave each part
    std::vector<std::int64_t> ghosts_;
    std::vector<double> price_;       // of an outgoing edge
    std::vector<double> ghost_price_; // of a ghost
    double largest_outgoing_ = 1, largest_ghosts_ = 1;
    std::vector<std::int32_t> moved_in_; // round in which a row was moved last
    std::vector<bool> active_;           // may be a start in the next round
    std::vector<float> gain_of_;         // of a row's youngest candidate
    std::vector<Candidate> heap_;
    std::uint32_t age_ = 0;
    std::vector<Done> moves_; // of the search at hand
    std::vector<std::pair<std::int32_t, std::int32_t>> edges_to_; // part, edges: of the row at hand
    std::int32_t round_ = 0;
    std::int64_t work_ = 0;
    std::optional<PartWalk> walk_; // if parts are to stay connected
};

} // namespace meshard
