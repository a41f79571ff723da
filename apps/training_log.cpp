// SPDX-License-Identifier: Apache-2.0
#include "apps/training_log.h"

#include <cmath>
#include <cstdio>
#include <iostream>

#include <unistd.h>

#include "apps/command_line.h"
#include "partition/error.h"

namespace meshard {

TrainingLog::TrainingLog(const std::filesystem::path& path, bool is_speaker)
    : path_(path), is_speaker_(is_speaker), is_terminal_(isatty(STDERR_FILENO) == 1)
{
}

void TrainingLog::record(const nlohmann::ordered_json& line)
{
    if (!is_speaker_ || path_.empty()) return;
    if (!file_.is_open()) file_.open(path_, std::ios::app);   // not before: a run that failed early leaves no trace
    file_ << line.dump() << std::endl;
    if (!file_) throw IoError(path_.string() + " cannot be written. Is the disk full?");
}

void TrainingLog::progress(const std::string& text, bool is_important)
{
    if (!is_speaker_) return;
    if (is_terminal_) {
        show_progress(text);
        return;
    }
    const auto now = std::chrono::steady_clock::now();
    if (!is_important && now - last_line_ < std::chrono::seconds(10)) return;
    last_line_ = now;
    std::cerr << text << std::endl;
}

void TrainingLog::say(const std::string& text)
{
    if (!is_speaker_) return;
    if (is_terminal_) show_progress("");
    std::cerr << text << std::endl;
}

std::string duration_text(double seconds)
{
    const auto whole = static_cast<long>(std::llround(std::max(0.0, seconds)));
    char text[32];
    if (whole < 3600) std::snprintf(text, sizeof text, "%ld:%02ld", whole / 60, whole % 60);
    else std::snprintf(text, sizeof text, "%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
    return text;
}

}  // namespace meshard
