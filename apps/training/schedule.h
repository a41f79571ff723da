// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/cases/case_list.h"
#include "apps/settings/training_config.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace meshard {

/// Learning rate of a step (from 0) of a run of `num_steps`: rises in a line for `warmup_steps` W, then goes on by `config.scheduler`. With x = (step - W) /
/// (num_steps - W), e the epochs done, `min_learning_rate` m and the highest rate r:
///
///     cosine        m + (r - m) (1 + cos(pi x)) / 2
///     linear        m + (r - m) (1 - x)
///     polynomial    m + (r - m) (1 - x)^power
///     step          max(m, r gamma^floor(e / step_epochs))
///     exponential   max(m, r gamma^e)
///     one_cycle     half cosines from r / 25 up to r over 30 % of the steps, then down to r / 250000 (Smith and Topin 2018, numbers of torch's OneCycleLR)
///     constant, plateau   r; what a plateau makes of it is said by `Plateau`
double learning_rate(const TrainingConfig& config, std::int64_t step, std::int64_t num_steps);

/// The first decay rate of the optimiser's means in a step of `one_cycle`: from 0.95 down to 0.85 and up again, as the learning rate goes up and down.
double first_beta_in_cycle(std::int64_t step, std::int64_t num_steps);

/// Lowers the learning rate where an error stops to fall: after more than `patience` checks in a row of which none was below (1 - threshold) times the lowest,
/// the rate is multiplied by gamma. The numbers are those of torch's ReduceLROnPlateau.
struct Plateau {
    double factor = 1;  ///< of the learning rate
    double best = std::numeric_limits<double>::infinity();
    std::int64_t bad_checks = 0;  ///< since the last better one, or the last change

    /// @return whether the factor has changed
    bool check(double error, const TrainingConfig& config);
};

/// Ends a run whose validation error stops to fall: after `patience` checks in a row without one that is below the best by more than `min_delta`.
struct EarlyStop {
    double best = std::numeric_limits<double>::infinity();
    std::int64_t bad_checks = 0;

    /// @return whether the run is to end; never where the patience is 0
    bool check(double error, const TrainingConfig& config);

    bool is_over(const TrainingConfig& config) const { return config.stop_patience > 0 && bad_checks >= config.stop_patience; }
};

/// Order of the cases in each epoch, as indices into `cases`. It follows from seed and epoch alone.
///
/// Where data sets have shares, an epoch of n cases has round(n share) of each set, at least one (the largest remainders are rounded up, so that they are n).
/// Cases of a set come in passes through all of the set, each in an order of its own, which go on from epoch to epoch; in an epoch the sets are mixed.
class CaseOrder {
public:
    /// @param sets   with shares, or none
    /// @throws IoError, InvalidInput if the order file is missing, or an epoch in it is no permutation of the cases, or sets have shares besides.
    CaseOrder(const TrainingConfig& config, std::int64_t seed, const std::vector<CaseSource>& cases, const std::vector<DataSetConfig>& sets = {});

    /// @param epoch   from 1   @throws InvalidInput if the order file ends before.
    std::vector<std::int64_t> of_epoch(std::int64_t epoch) const;

    /// Of each case of an epoch, in its order: which time it is that the case trains, from 1. Its points and variations are drawn by that.
    std::vector<std::int64_t> times_of_epoch(std::int64_t epoch) const;

    /// Cases of each set in an epoch, in the order of the sets; empty where they have no shares.
    std::vector<std::int64_t> cases_of_sets() const;

private:
    struct Set {
        std::vector<std::int64_t> cases;  // indices
        std::int64_t num_in_epoch = 0;
    };
    std::vector<std::pair<std::int64_t, std::int64_t>> mixed(std::int64_t epoch) const;

    std::vector<Set> sets_;  // that have shares
    std::int64_t num_cases_ = 0;
    std::int64_t seed_ = 0;
    bool shuffle_ = true;
    std::string file_;
    std::vector<std::vector<std::int64_t>> epochs_;  // from the order file
};

}  // namespace meshard
