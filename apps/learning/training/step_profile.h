// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>

namespace meshard {

/// What this rank does in some steps of a run, as a chrome trace (opened by chrome://tracing and https://ui.perfetto.dev): every operator, forward and
/// backward, kernels and copies of GPUs, and ranges: forward, backward and optimizer, blocks of the model, collectives by name and axis, and waits for them.
class StepProfile {
public:
    /// @param num_steps   0: none   @param path   of the file to be written, whose folder is made
    StepProfile(std::int64_t num_steps, std::filesystem::path path);
    ~StepProfile();
    StepProfile(const StepProfile&) = delete;
    StepProfile& operator=(const StepProfile&) = delete;

    /// To be called before each step. The first of a process, which prepares what others reuse, is not in the trace. @throws IoError if it cannot be written
    void next_step();

    /// No step comes any more: writes what there is. @throws IoError
    void finish();

private:
    std::int64_t num_steps_, num_begun_ = 0;
    std::filesystem::path path_;
    bool is_recording_ = false;
};

}  // namespace meshard
