// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/settings/training_log.h"

#include <chrono>
#include <cstdint>
#include <filesystem>

namespace meshard {

/// What this rank does in some steps of a run, as a chrome trace (opened by chrome://tracing and
/// https://ui.perfetto.dev): every operator, forward and backward, kernels and copies of GPUs, and ranges: forward,
/// backward, optimizer, data and validation, blocks of the model, collectives by name and axis, and waits for them. The
/// log has the sums, of the rank that speaks there: what the host did in the time of these steps, where each moment
/// counts once, the ten dearest operators without those that they call, and the ten dearest kernels of GPUs.
class StepProfile {
public:
    /// @param num_steps   0: none   @param path   of the file to be written, whose folder is made
    StepProfile(std::int64_t num_steps, std::filesystem::path path, TrainingLog& log);
    ~StepProfile();
    StepProfile(const StepProfile&) = delete;
    StepProfile& operator=(const StepProfile&) = delete;

    /// To be called before each step. The first of a process, which prepares what others reuse, is not in the trace.
    /// @throws IoError if it cannot be written
    void next_step();

    /// No step comes any more: writes what there is, or says that there is nothing. @throws IoError
    void finish();

private:
    std::int64_t num_steps_, num_begun_ = 0;
    std::filesystem::path path_;
    TrainingLog& log_;
    bool is_recording_ = false, is_finished_ = false;
    std::chrono::steady_clock::time_point begin_;
};

}  // namespace meshard
