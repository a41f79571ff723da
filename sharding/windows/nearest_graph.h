// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/csr.h"
#include "sharding/messages/rank_messages.h"
#include "sharding/windows/row_coordinates.h"
#include "sharding/windows/window_graph.h"

#include <cstdint>
#include <span>
#include <vector>

namespace meshard {

class CurveWindows;

/// The graph of nearest neighbours (`nearest_neighbor_graph`) of rows that no process holds as a whole, window by
/// window. For each row it stores how many of its nearest are in its own window, and the neighbours in others;
/// neighbours within a window are searched again when they are requested.
class NearestGraph {
public:
    /// Each window searches its own rows, and then requests rows of other windows that may be nearer. Collective.
    /// @throws InvalidInput for a coordinate above 1e150.
    NearestGraph(const CurveWindows& windows, RankMessages& messages, std::int32_t num_nearest,
                 RowCoordinates coordinates);

    /// Neighbours within a window of this rank, by index in the window.
    Csr inner_graph(std::int32_t window) const;

    /// Neighbours in other windows, ascending.
    std::span<const Crossing> crossings(std::int32_t window) const;

    WindowGraph graph(std::int32_t window) const;

private:
    // The rows of a window in the order of their numbers in the file, which decides ties.
    struct Ordered {
        std::vector<std::int32_t> order;  // index in the window
        DataArray coordinates;
    };
    class WindowSearch;

    Ordered ordered(std::int32_t window) const;
    void find_in_round(std::int32_t round, std::vector<Crossing>& found);

    const CurveWindows& windows_;
    RankMessages& messages_;
    std::int32_t num_nearest_;
    RowCoordinates coordinates_;
    // For each of this rank's positions, how many of its nearest are in its window.
    std::vector<std::uint16_t> num_inside_;
    std::vector<Crossing> crossings_;
};

}  // namespace meshard
