// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/settings/event_file.h"

#include <nlohmann/json.hpp>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

namespace meshard {

/// What a training run tells: metrics.jsonl, and a line on stderr. Silent on all ranks but the first.
class TrainingLog {
public:
    /// Appends to `path` (an empty one: records go nowhere); says and writes nothing if `is_speaker` is false.
    TrainingLog(const std::filesystem::path& path, bool is_speaker);

    /// For a run that goes on from a checkpoint after `step` steps: takes away what an earlier process recorded of later ones, in one step, and lines that it
    /// did not finish. If the run has no step left, `is_the_end`, also what was recorded after the last one, which it records again. Before the first `record`.
    /// @throws IoError
    void go_back_to(std::int64_t step, std::int64_t steps_per_epoch, bool is_the_end);

    /// One line of metrics.jsonl, complete when the call returns. @throws IoError if it cannot be written.
    void record(const nlohmann::ordered_json& line);

    /// From now on each record is also an event of TensorBoard, in a new file of this folder.
    void write_events(const std::filesystem::path& folder) { events_folder_ = folder; }

    /// The progress line: rewritten in place on a terminal, else printed every ten seconds and when `is_important`.
    void progress(const std::string& text, bool is_important);

    /// A line that stays.
    void say(const std::string& text);

private:
    std::filesystem::path path_;
    std::ofstream file_;
    std::filesystem::path events_folder_;
    std::optional<EventFile> events_;
    bool is_speaker_;
    bool is_terminal_;
    std::chrono::steady_clock::time_point last_line_{};
};

/// `0:42`, `12:05`, `2:14:09`.
std::string duration_text(double seconds);

}  // namespace meshard
