// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/messages/rank_messages.h"
#include "sharding/windows/curve_windows.h"

#include <cstdint>
#include <span>
#include <vector>

namespace meshard {

/// Counts the connected pieces of parts that extend over windows and ranks: pieces within each window are joined by the
/// edges between windows.
class PieceCounter {
public:
    /// Adds a window of this rank, in ascending order; `owners` are the owners of its cells, `outside` those of the
    /// other rows of `graph`.
    void add_window(const WindowGraph& graph, std::int64_t begin, std::span<const std::int32_t> owners,
                    std::span<const std::int32_t> outside);

    /// The number of pieces of each part, on rank 0; zeros elsewhere. Collective, after all windows.
    std::vector<std::int64_t> count(RankMessages& messages, const RankRanges& positions, std::int32_t num_parts) const;

private:
    struct Place {  // a cell with neighbours in other windows, and its piece
        std::int32_t position, piece;
    };

    std::vector<std::int32_t> parts_;  // part of each piece within a window
    std::vector<Place> places_;        // sorted by position
    std::vector<Place> links_;         // a position in another window, and the piece here that is connected to it
};

}  // namespace meshard
