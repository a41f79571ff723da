// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_list.h"
#include "apps/learning/cases/case_tensors.h"
#include "apps/learning/settings/training_config.h"
#include "sharding/transport/launch.h"

#include <csignal>
#include <functional>

namespace meshard {

struct TrainingStart {
    bool resume = false;          ///< go on from checkpoints/last in the run's folder
    bool validate_only = false;   ///< build everything and read one case, no training
    bool print_plan = false;      ///< the same, and say on stdout what a step would run
    bool verify_sources = false;  ///< read every source whole to see whether its shards are still of it
    std::int64_t profile_steps =
        0;  ///< so many steps after the first are traced: profile/rank_R.json in the run's folder
    /// Called on every rank, when settings, data and checkpoint were found to be good; from here on there is something
    /// to save.
    std::function<void()> before_first_step = {};
    std::function<void()> after_last_step = {};  ///< called on every rank at the end of a run that was not stopped
    bool accepts_data = false;                   ///< train on data that contradict themselves

    /// Returns whether nothing is trained, and nothing written but shards.
    bool is_trial() const { return validate_only || print_plan; }
};

/// Prepares shards, trains, and leaves in the run's folder: metrics.jsonl, checkpoints/last and checkpoints/best.
/// Collective over all ranks. Stops between two steps when `stop_requested` is set on any rank; the checkpoint then is
/// of that step.
///
/// @return false if it was stopped.
/// @throws InvalidInput naming case and array for bad data; Error when the loss is no longer finite.
bool train(const TrainingRunConfig& config, const CaseLists& cases, const TrainingStart& start, World& world,
           const volatile std::sig_atomic_t& stop_requested);

}  // namespace meshard
