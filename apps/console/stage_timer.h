// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// A stage of a run and the fraction of the time that it takes on a typical mesh.
struct PlannedStage {
    std::string name;
    double share = 0;
};

/// Measures wall-clock seconds and memory of the stages of a run.
class StageTimer {
public:
    StageTimer() = default;
    /// With a `plan` progress is shown as a bar; stages that are not in it do not move the bar.
    explicit StageTimer(std::vector<PlannedStage> plan) : plan_(std::move(plan)) {}

    /// Ends the previous stage and begins this one; shows its name as progress.
    void begin(const std::string& stage);

    /// Shows that this fraction of the current stage, 0 to 1, is done.
    void advance(double share_of_stage);

    /// Ends the last stage. Returns seconds of all stages, with `total` (since construction) at the end.
    const std::vector<std::pair<std::string, double>>& finish();

    /// Peak memory of the process at the end of each stage, in the order of `finish` without `total`.
    const std::vector<std::uint64_t>& peaks() const { return peaks_; }

private:
    using Clock = std::chrono::steady_clock;

    void end();

    Clock::time_point start_ = Clock::now();
    Clock::time_point stage_start_;
    std::string stage_;
    std::vector<PlannedStage> plan_;
    double done_ = 0;  // sum of the shares of finished stages
    std::vector<std::pair<std::string, double>> seconds_;
    std::vector<std::uint64_t> peaks_;
};

/// Returns the peak resident memory of this process so far, in bytes.
std::uint64_t peak_memory_bytes();

}  // namespace meshard
