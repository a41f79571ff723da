// SPDX-License-Identifier: Apache-2.0
#include "apps/console/stage_timer.h"

#include "apps/console/console.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

namespace meshard {

void StageTimer::begin(const std::string& stage)
{
    end();
    stage_ = stage;
    stage_start_ = Clock::now();
    advance(0);
}

void StageTimer::advance(double share_of_stage)
{
    const auto planned = std::ranges::find(plan_, stage_, &PlannedStage::name);
    const double share = planned == plan_.end() ? 0 : planned->share;
    show_progress(stage_ + " ...", plan_.empty() ? std::nullopt : std::optional(done_ + share * share_of_stage));
}

void StageTimer::end()
{
    if (stage_.empty()) return;
    seconds_.emplace_back(stage_, std::chrono::duration<double>(Clock::now() - stage_start_).count());
    peaks_.push_back(peak_memory_bytes());
    if (const auto planned = std::ranges::find(plan_, stage_, &PlannedStage::name); planned != plan_.end())
        done_ += planned->share;
    stage_.clear();
    show_progress("");
}

const std::vector<std::pair<std::string, double>>& StageTimer::finish()
{
    end();
    seconds_.emplace_back("total", std::chrono::duration<double>(Clock::now() - start_).count());
    return seconds_;
}

std::uint64_t peak_memory_bytes()
{
    // getrusage keeps its value over exec, so that may be the peak of the program that started this one.
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with("VmHWM:")) return std::stoull(line.substr(6)) * 1024;
    }
    return 0;
}

}  // namespace meshard
