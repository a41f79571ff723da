// SPDX-License-Identifier: Apache-2.0
#include "apps/stage_timer.h"

#include "apps/command_line.h"

#include <fstream>
#include <string>

namespace meshard {

void StageTimer::begin(const std::string& stage)
{
    end();
    stage_ = stage;
    stage_start_ = Clock::now();
    show_progress(stage + " ...");
}

void StageTimer::end()
{
    if (stage_.empty()) return;
    seconds_.emplace_back(stage_, std::chrono::duration<double>(Clock::now() - stage_start_).count());
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
    // Not getrusage: its figure survives exec, so that it may be that of the program which started this one.
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with("VmHWM:")) return std::stoull(line.substr(6)) * 1024;
    }
    return 0;
}

}  // namespace meshard
