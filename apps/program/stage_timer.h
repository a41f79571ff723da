// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// A stage of a run and the share of the time that it takes on a usual mesh.
struct PlannedStage {
    std::string name;
    double share = 0;
};

/// Wall-clock seconds and memory of the stages of a run, one after the other.
class StageTimer {
public:
    StageTimer() = default;
    /// `plan` lets progress be shown as a bar; stages that it does not name take no part in it.
    explicit StageTimer(std::vector<PlannedStage> plan) : plan_(std::move(plan)) {}

    /// Ends the stage before and begins this one; shows its name as progress.
    void begin(const std::string& stage);

    /// Shows that this share of the running stage, 0 to 1, is done.
    void advance(double share_of_stage);

    /// Ends the last stage. The list of all, with `total` (since construction) at the end.
    const std::vector<std::pair<std::string, double>>& finish();

    /// Most memory that the process had held by the end of each stage, in the order of `finish` without `total`.
    const std::vector<std::uint64_t>& peaks() const { return peaks_; }

private:
    using Clock = std::chrono::steady_clock;

    void end();

    Clock::time_point start_ = Clock::now();
    Clock::time_point stage_start_;
    std::string stage_;
    std::vector<PlannedStage> plan_;
    double done_ = 0;  // shares of the stages that are over
    std::vector<std::pair<std::string, double>> seconds_;
    std::vector<std::uint64_t> peaks_;
};

/// Most memory that this process has held so far.
std::uint64_t peak_memory_bytes();

}  // namespace meshard
