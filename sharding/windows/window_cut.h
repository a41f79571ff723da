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
#include <string>
#include <vector>

namespace meshard {

/// A ghost as the piece of a part needs it.
struct GhostRow {
    std::int32_t owner, id, level;

    auto operator<=>(const GhostRow&) const = default;
};

/// What one part holds, by numbers in the file.
struct RowsOfPart {
    std::vector<std::int32_t> owned;          ///< ascending
    std::vector<GhostRow> ghosts;             ///< by owner, then number
    std::vector<std::int32_t> unused_points;  ///< owned by this part because no cell uses them
};

/// A partition of the cells of `CurveWindows`, whose owners lie with the windows. All functions are collective.
class WindowCut {
public:
    /// By blocks (block_cut.h); along the curve, without a graph, for the method `hilbert` where neither levels nor whole parts are asked for;
    /// or as given, mended if asked for.
    WindowCut(const CurveWindows& windows, RankMessages& messages, const WindowCutOptions& options);

    /// Moves cells between parts window by window (boundary_search.h). Cells with neighbours in other windows stay, so that windows do not
    /// depend on each other; each gets an equal share of the room that is left in a part. No window's cut gets worse. Parts in one piece stay so if asked for.
    void refine();

    /// Numbers the parts in the order of their mean positions on the curve. Keeps the numbers with capacities or levels, and of a given partition.
    void number_along_curve();

    /// Finds the ghosts of all parts, those of `ghost_graph`. @return quality; edges between parts and pieces of parts on rank 0 only.
    PartitionQuality find_ghosts(std::int32_t num_layers, const GhostRule& rule = {});

    /// Largest weight of a part over its fair share, of each weight.
    std::vector<double> imbalances() const;

    /// Gives each point the owner of the first cell that uses it (`CurveWindows::take_first_cells`).
    void settle_points(std::vector<std::int32_t> first_cells);

    /// The rows of part `first_part` + this rank's number.
    RowsOfPart rows_of_parts(std::int32_t first_part) const;

    /// After `find_ghosts`: entries of the graph of all cells.
    std::int64_t num_graph_entries() const { return num_graph_entries_; }

    /// After `find_ghosts`: polygons and solids without neighbours.
    std::int64_t num_isolated() const { return num_isolated_; }

    /// After `settle_points`. Neighbours of the cells `begin` ... `end` - 1, all by their numbers in the file, ascending; on rank 0, elsewhere nothing. Goes
    /// through all windows.
    Csr neighbors_in_file(std::int64_t begin, std::int64_t end) const;

    /// The same of their owners.
    std::vector<std::int32_t> owners_in_file(std::int64_t begin, std::int64_t end) const;

    /// The owners of the cells of one of this rank's windows, by index in it.
    std::span<const std::int32_t> owners(std::int32_t window) const
    {
        return std::span(owners_).subspan(windows_.begin(window) - windows_.positions().begin(messages_.rank()), windows_.size(window));
    }

    /// Parts that own these points.
    std::vector<std::int32_t> owners_of_points(std::span<const std::int32_t> points) const;

private:
    struct Surroundings {
        std::int32_t window;
        bool is_here;  ///< this rank has a window in this round; the others ask for nothing
        WindowGraph graph;
        std::vector<std::int32_t> outside;  ///< owners of the cells outside of the window that the graph looks at
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
    std::vector<std::int32_t> owners_;         // of this rank's positions
    std::vector<std::int32_t> owners_by_id_;   // of this rank's cells by their number in the file
    std::vector<std::int32_t> point_owners_;   // of this rank's points
    std::vector<std::int32_t> unused_points_;  // of this rank
    std::int32_t num_weights_ = 1;
    std::vector<std::int32_t> weights_;  // (this rank's positions, num_weights_), or none
    std::vector<GhostMark> marks_;
    std::int64_t num_graph_entries_ = 0;
    std::int64_t num_isolated_ = 0;
};

}  // namespace meshard
