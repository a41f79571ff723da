// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/prediction/prediction.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>

namespace meshard {

/// How far and with which steps a simulation is predicted.
struct SeriesPrediction {
    std::int64_t num_steps = 0;
    std::optional<double> step = {};  ///< time between two states; else that of the start's series, or of the training
    bool goes_on = false;             ///< from the last state of an earlier, shorter output
    std::int64_t num_samples = 1;     ///< ways that each model which draws its states goes
    std::uint64_t seed = 0;           ///< the first of them has this, the others those after it
    std::int64_t num_levels = 0;      ///< levels of noise that such states go through; 0: the model's own
    /// Table to write, with a line a state: state, time, the coefficients that are known and their deviations (Cd_std);
    /// empty: none.
    std::filesystem::path forces = {};
};

/// Predicts states one from the other, from a start on, and writes them as a series: `output`, a .pvd, and a mesh a
/// state in a folder of its name; or a .vtkhdf with all states, which are until the last one is there a series
/// NAME_steps.pvd beside it. The first states written are those that the models are told of the start; predicted
/// arrays are called as those of the training cases, and of points that move the coordinates change. Arrays of
/// `data.arrays` and `data.given` are written too, others are not. Of several models, or samples of one, each goes its
/// own way; their mean is written, and their spread as NAME_spread; until the end the last states of each lie beside
/// (`state_of_track`).
///
/// The index is written after each state, so that what an interruption leaves is a series that can be continued. The
/// first rank holds one state whole, the others their parts. Collective over all ranks.
/// @param start   a mesh, or a series whose first states are told, and whose times and arrays are then followed
/// @throws UnusableInput for a start that lacks what models are told, or is a series that ends before the steps that
/// need its given arrays; InvalidInput for an output that cannot be continued
void predict_series(std::span<Predictor> models, const std::filesystem::path& start,
                    const std::filesystem::path& output, const PredictionOptions& options,
                    const SeriesPrediction& series, World& world);

}  // namespace meshard
