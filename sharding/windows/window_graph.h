// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/csr.h"

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace meshard {

/// The graph of one window: rows 0 ... num_cells - 1 are its cells; the rows after them are their neighbours outside
/// the window, which have edges to the window only.
struct WindowGraph {
    Csr graph;
    std::int32_t num_cells = 0;
    std::vector<std::int32_t> outside;  ///< position of each row after the window's cells
};

/// Returns the graph of a window of this rank.
using GraphOfWindow = std::function<WindowGraph(std::int32_t)>;

/// A pair of neighbours in different windows: positions here and there.
struct Crossing {
    std::int32_t here, there;

    auto operator<=>(const Crossing&) const = default;
};

/// The crossings from the positions `begin` ... `end - 1`; `crossings` are ascending.
std::span<const Crossing> crossings_from(std::span<const Crossing> crossings, std::int64_t begin, std::int64_t end);

/// Makes the graph of a window that begins at position `begin` from the neighbours within it and its crossings.
WindowGraph join_outside(const Csr& inner, std::span<const Crossing> crossings, std::int64_t begin);

}  // namespace meshard
