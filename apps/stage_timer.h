// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// Wall-clock seconds of the stages of a run, one after the other.
class StageTimer {
public:
    /// Ends the stage before and begins this one; shows its name as progress.
    void begin(const std::string& stage);

    /// Ends the last stage. The list of all, with `total` (since construction) at the end.
    const std::vector<std::pair<std::string, double>>& finish();

private:
    using Clock = std::chrono::steady_clock;

    void end();

    Clock::time_point start_ = Clock::now();
    Clock::time_point stage_start_;
    std::string stage_;
    std::vector<std::pair<std::string, double>> seconds_;
};

/// Most memory that this process has held so far.
std::uint64_t peak_memory_bytes();

}  // namespace meshard
