// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/messages/rank_messages.h"
#include "sharding/windows/curve_windows.h"

#include <cstdint>
#include <span>
#include <vector>

namespace meshard {

/// Counts the connected pieces of parts that lie in several windows, on several ranks: pieces within each window, joined by the edges that
/// cross windows.
class PieceCounter {
public:
    /// A window of this rank, in ascending order; `owners` are those of its cells, `outside` those of the other rows of `graph`.
    void add_window(const WindowGraph& graph, std::int64_t begin, std::span<const std::int32_t> owners, std::span<const std::int32_t> outside);

    /// Collective, after all windows. Pieces of each part, on rank 0; elsewhere zeros.
    std::vector<std::int64_t> count(RankMessages& messages, const RankRanges& positions, std::int32_t num_parts) const;

private:
    struct Place {  // a cell with neighbours in other windows, and its piece
        std::int32_t position, piece;
    };

    std::vector<std::int32_t> parts_;  // of each piece found within a window
    std::vector<Place> places_;        // by position
    std::vector<Place> links_;         // position in another window, piece here that goes on there
};

}  // namespace meshard
