// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/cut/partition.h"
#include "partition/cut/refinement.h"
#include "partition/ghosts/ghost_graph.h"
#include "sharding/messages/rank_messages.h"
#include "sharding/windows/block_cut.h"
#include "sharding/windows/curve_windows.h"
#include "sharding/windows/window_ghosts.h"

#include <cstdint>
#include <span>
#include <vector>

namespace meshard {

/// A ghost in the piece of a part.
struct GhostRow {
    std::int32_t owner, id, level;

    auto operator<=>(const GhostRow&) const = default;
};

/// The rows of one part, by numbers in the file.
struct RowsOfPart {
    std::vector<std::int32_t> owned;          ///< ascending
    std::vector<GhostRow> ghosts;             ///< sorted by owner, then number
    std::vector<std::int32_t> unused_points;  ///< owned by this part because no cell uses them
};

/// A partition of the cells of `CurveWindows`; each rank has the owners of its windows' cells. All functions are
/// collective.
class WindowCut {
public:
    /// Cuts by blocks (block_cut.h), or along the curve, without a graph, for the method `hilbert` if neither levels
    /// nor connected parts are asked for and no part is then empty or above its bound; or takes the given partition,
    /// repaired if asked for.
    WindowCut(const CurveWindows& windows, RankMessages& messages, const WindowCutOptions& options);

    /// Moves cells between parts window by window (boundary_search.h). Cells with neighbours in other windows stay, so
    /// that windows do not depend on each other; each window gets an equal share of the weight that a part may still
    /// gain. No window's cut gets worse. Connected parts stay connected if asked for.
    void refine();

    /// Numbers the parts in the order of their mean positions on the curve, unless they have capacities or levels or
    /// were given.
    void number_along_curve();

    /// Finds the ghosts of all parts, equal to those of `ghost_graph`.
    /// @return quality; edges between parts and pieces of parts on rank 0 only
    PartitionQuality find_ghosts(std::int32_t num_layers, const GhostRule& rule = {});

    /// For each weight the largest ratio of a part's weight to its fair share.
    std::vector<double> imbalances() const;

    /// Whether a part is empty or above its bound.
    bool exceeds_bounds() const;

    /// Gives each point the owner of the first cell that uses it (`CurveWindows::take_first_cells`).
    void settle_points(std::vector<std::int32_t> first_cells);

    /// The rows of part `first_part` + this rank's number.
    RowsOfPart rows_of_parts(std::int32_t first_part) const;

    /// The number of entries of the graph of all cells; after `find_ghosts`.
    std::int64_t num_graph_entries() const { return num_graph_entries_; }

    /// The number of polygons and solids without neighbours; after `find_ghosts`.
    std::int64_t num_isolated() const { return num_isolated_; }

    /// The neighbours of the cells `begin` ... `end` - 1, all by number in the file, ascending; on rank 0, empty
    /// elsewhere. Computes the graphs of all windows. After `settle_points`.
    Csr neighbors_in_file(std::int64_t begin, std::int64_t end) const;

    /// The owners of the cells `begin` ... `end` - 1 by number in the file; on rank 0, empty elsewhere.
    std::vector<std::int32_t> owners_in_file(std::int64_t begin, std::int64_t end) const;

    /// The owners of the cells of one of this rank's windows, by index in the window.
    std::span<const std::int32_t> owners(std::int32_t window) const
    {
        return std::span(owners_).subspan(windows_.begin(window) - windows_.positions().begin(messages_.rank()),
                                          windows_.size(window));
    }

    /// The owners of these points.
    std::vector<std::int32_t> owners_of_points(std::span<const std::int32_t> points) const;

private:
    struct Surroundings {
        std::int32_t window;
        bool is_here;  ///< whether this rank has a window in this round; otherwise it requests nothing
        WindowGraph graph;
        std::vector<std::int32_t> outside;  ///< owners of the cells outside the window in the graph
    };
    Surroundings window_of_round(std::int32_t round) const;  ///< collective

    std::span<std::int32_t> owners_in(std::int32_t window);
    std::vector<std::int64_t> part_sizes() const;
    std::vector<std::int32_t> part_weights() const;                              // (parts, weights)
    BalanceTarget balance_of(std::span<const std::int32_t> part_weights) const;  // as if each part were a row
    std::span<const std::int32_t> weights_in(std::int32_t window) const;
    std::int64_t count_isolated(std::int32_t window, const WindowGraph& graph) const;
    void take_given();
    void cut_along_curve();
    void settle_cells();

    const CurveWindows& windows_;
    RankMessages& messages_;
    WindowCutOptions options_;
    std::int64_t num_cells_;
    std::vector<std::int32_t> owners_;         // owners of the cells at this rank's positions
    std::vector<std::int32_t> owners_by_id_;   // owners of this rank's cells by number in the file
    std::vector<std::int32_t> point_owners_;   // owners of this rank's points
    std::vector<std::int32_t> unused_points_;  // this rank's points that no cell uses
    std::int32_t num_weights_ = 1;
    std::vector<std::int32_t> weights_;  // (this rank's positions, num_weights_), or empty
    std::vector<GhostMark> marks_;
    std::int64_t num_graph_entries_ = 0;
    std::int64_t num_isolated_ = 0;
};

}  // namespace meshard
