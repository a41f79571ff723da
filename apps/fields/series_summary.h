// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/series.h"

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// The times of a series, in its own unit.
struct SeriesTimes {
    double first = 0, last = 0;
    double least_step = 0, most_step = 0;  ///< between neighbours; 0 for one state

    /// Whether all steps are the same but for 0.1 %, to which files often round times.
    bool are_even() const { return most_step - least_step <= 1e-3 * most_step; }
};

/// @param states   at least one, by ascending time
SeriesTimes summarize(std::span<const SeriesState> states);

/// An array of one or more states, and what becomes of it.
struct ArrayOverTime {
    std::string association;  ///< `point`, `cell` or `field`
    std::string name;
    std::size_t num_states = 0;  ///< number of states that have it
    bool changes = false;        ///< whether its type, shape or values differ between two states that have it
};

/// What differs between the states of a series, bit for bit.
struct SeriesChanges {
    bool points = false, cells = false;
    std::vector<ArrayOverTime> arrays;  ///< in the order of the first state, then of later ones
};

/// Reads every state and compares it with the first, or an array with that of the first state that has it. Holds two
/// states in memory.
/// @param progress   called with the number of states read so far
/// @throws as `read_mesh`
SeriesChanges compare_states(std::span<const SeriesState> states, const std::function<void(std::size_t)>& progress);

}  // namespace meshard
