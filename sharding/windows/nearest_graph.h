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

/// The graph of the nearest neighbours of rows that no process holds: that of `nearest_neighbor_graph`, window by window. What is kept is how many of a row's
/// nearest lie in its own window, and the neighbours in others; the rest is searched for when it is asked for.
class NearestGraph {
public:
    /// Collective. Each window finds the nearest in itself, and asks those other windows for rows that lie so near that they might be nearer.
    /// @throws InvalidInput for a coordinate above 1e150.
    NearestGraph(const CurveWindows& windows, RankMessages& messages, std::int32_t num_nearest, RowCoordinates coordinates);

    /// Neighbours within a window of this rank, by index in it.
    Csr inner_graph(std::int32_t window) const;

    /// Neighbours in other windows, ascending.
    std::span<const Crossing> crossings(std::int32_t window) const;

    WindowGraph graph(std::int32_t window) const;

private:
    // The rows of a window in the order of their numbers in the file, by which ties are decided.
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
    std::vector<std::uint16_t> num_inside_;  // of each of this rank's positions, of its nearest those in its window
    std::vector<Crossing> crossings_;
};

}  // namespace meshard
