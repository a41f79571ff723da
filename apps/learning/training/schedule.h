// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/checkpoints/run_description.h"
#include "apps/learning/settings/training_config.h"

#include <cstdint>

namespace meshard {

/// Returns the learning rate of a step (from 0) of a run of `num_steps`. It rises in a line for `warmup_steps` W, then
/// goes on by `config.scheduler`. With x = (step - W) / (num_steps - W), e the epochs done, `min_learning_rate` m and
/// the highest rate r:
///
///     cosine        m + (r - m) (1 + cos(pi x)) / 2
///     linear        m + (r - m) (1 - x)
///     polynomial    m + (r - m) (1 - x)^power
///     step          max(m, r gamma^floor(e / step_epochs))
///     exponential   max(m, r gamma^e)
///     one_cycle     half cosines: r / 25 up to r in 30 % of the steps, then down to r / 250000
///     constant      r; so does plateau, whose factor `lowers_rate` finds
///
/// `one_cycle` is that of Smith and Topin (2018) with the numbers of torch's OneCycleLR.
double learning_rate(const TrainingConfig& config, std::int64_t step, std::int64_t num_steps);

/// Returns the first decay rate of the optimiser's means in a step of `one_cycle`: from 0.95 down to 0.85 and up again,
/// as the learning rate goes up and down.
double first_beta_in_cycle(std::int64_t step, std::int64_t num_steps);

/// Lowers the learning rate where the validation error stops to fall: after more than `patience` checks in a row of
/// which none was below (1 - threshold) times the lowest, the rate is multiplied by gamma. The numbers are those of
/// torch's ReduceLROnPlateau.
/// @return whether the factor has changed
bool lowers_rate(PlateauState& state, double error, const TrainingConfig& config);

/// Ends a run whose validation error stops to fall: after `patience` checks in a row without one that is below the best
/// by more than `min_delta`.
/// @return whether the run is to end; never where the patience is 0
bool ends_run(EarlyStopState& state, double error, const TrainingConfig& config);

inline bool is_over(const EarlyStopState& state, const TrainingConfig& config)
{
    return config.stop_patience > 0 && state.bad_checks >= config.stop_patience;
}

}  // namespace meshard
