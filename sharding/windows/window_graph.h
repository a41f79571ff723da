// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/csr.h"

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace meshard {

/// The graph of one window: rows 0 ... num_cells - 1 are its cells, the rows after them the cells outside that are their neighbours,
/// which have edges to the window only.
struct WindowGraph {
    Csr graph;
    std::int32_t num_cells = 0;
    std::vector<std::int32_t> outside;  ///< position of each row after the window's cells
};

/// The graph of each window of this rank, by its number.
using GraphOfWindow = std::function<WindowGraph(std::int32_t)>;

/// A neighbour in another window: position here and there.
struct Crossing {
    std::int32_t here, there;

    auto operator<=>(const Crossing&) const = default;
};

/// Of ascending crossings those from the positions `begin` ... `end - 1`.
std::span<const Crossing> crossings_from(std::span<const Crossing> crossings, std::int64_t begin, std::int64_t end);

/// The graph of a window that begins at the position `begin`, of the neighbours within it and of its crossings.
WindowGraph join_outside(const Csr& inner, std::span<const Crossing> crossings, std::int64_t begin);

}  // namespace meshard
