// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/checkpoints/run_description.h"
#include "apps/learning/settings/training_log.h"
#include "apps/learning/training/schedule.h"
#include "apps/learning/training/trained_model.h"
#include "apps/learning/training/training_data.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>

namespace meshard {

/// One run of `train`: its settings, ranks, data and model, and how far it has come.
struct Run {
    Run(const TrainingRunConfig& config, const CaseLists& cases, const TrainingStart& start, World& world,
        const volatile std::sig_atomic_t& stop_requested);

    std::int64_t num_steps() const { return config.training.num_epochs * data.steps_per_epoch(); }
    std::int64_t num_steps_limit() const
    {
        return config.training.max_steps > 0 ? std::min(num_steps(), config.training.max_steps) : num_steps();
    }
    /// The epoch of the last step, from 1; 0 before the first.
    std::int64_t epoch() const { return epoch_of(progress.num_steps); }
    /// The epoch in which a step is the last one done.
    std::int64_t epoch_of(std::int64_t num_steps) const
    {
        return (num_steps + data.steps_per_epoch() - 1) / data.steps_per_epoch();
    }
    bool is_over() const
    {
        return progress.num_steps >= num_steps_limit() || meshard::is_over(progress.early_stop, config.training);
    }

    using Clock = std::chrono::steady_clock;
    static double seconds_since(Clock::time_point start)
    {
        return std::chrono::duration<double>(Clock::now() - start).count();
    }

    const Clock::time_point start = Clock::now();
    const TrainingRunConfig& config;
    const RunRanks ranks;
    TrainingLog log;
    TrainingData data;
    TrainedModel model;
    RunProgress progress;
    double seconds_in_preparation = 0;
};

/// Describes the run as it stands. @param errors   of the epoch's validation, as `error_json` gives them; null: none
/// @param held_out   of the same
RunDescription describe(const Run& run, const nlohmann::json& errors, const HeldOutErrors& held_out = {});

/// Saves checkpoints/NAME in the run's folder. Collective. @param errors, held_out   as of `describe`
void save(const Run& run, const char* name, const nlohmann::json& errors, const HeldOutErrors& held_out = {});

/// Goes on from checkpoints/last. Collective.
/// @param accepts_data   go on, with a warning, where statistics of the training cases are not those of the checkpoint
/// @throws InvalidInput if that is of another run or of other data; IoError as `Checkpoint`
void resume(Run& run, bool accepts_data);

}  // namespace meshard
