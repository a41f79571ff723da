// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// Writes numbers over steps for TensorBoard: a file `events.out.tfevents...` of records (length, its masked checksum,
/// an Event in protocol buffers' encoding, its masked checksum). Each record is complete when `add` returns.
class EventFile {
public:
    /// Creates a new file in `folder`, and the folder if needed. @throws IoError
    explicit EventFile(const std::filesystem::path& folder);

    /// @throws IoError if it cannot be written.
    void add(std::int64_t step, const std::vector<std::pair<std::string, double>>& scalars);

private:
    void write(const std::string& event);

    std::filesystem::path path_;
    std::ofstream file_;
};

/// Writes a training run's metrics.jsonl and its lines on stderr, on the first rank only.
class TrainingLog {
public:
    /// Appends records to `path`, unless it is empty; writes nothing at all if `is_speaker` is false.
    TrainingLog(const std::filesystem::path& path, bool is_speaker);

    /// Prepares a run that resumes after `step` steps: atomically removes the records of later steps and incomplete
    /// lines of an earlier process. If the run has no step left, `is_the_end`, also removes what was recorded after the
    /// last step, since the run records it again. To be called before the first `record`.
    /// @throws IoError
    void go_back_to(std::int64_t step, std::int64_t steps_per_epoch, bool is_the_end);

    /// Appends one line to metrics.jsonl, complete when the call returns. @throws IoError if it cannot be written.
    void record(const nlohmann::ordered_json& line);

    /// Writes each later record also as an event for TensorBoard, in a new file of this folder.
    void write_events(const std::filesystem::path& folder) { events_folder_ = folder; }

    /// Shows a progress line: rewritten in place on a terminal, else printed every ten seconds and when `is_important`.
    void progress(const std::string& text, bool is_important);

    /// Prints a line that stays.
    void say(const std::string& text);
    template <class First, class... Others>
    void say(fmt::format_string<First, Others...> text, First&& first, Others&&... others)
    {
        say(fmt::format(text, std::forward<First>(first), std::forward<Others>(others)...));
    }

private:
    std::filesystem::path path_;
    std::ofstream file_;
    std::filesystem::path events_folder_;
    std::optional<EventFile> events_;
    bool is_speaker_;
    bool is_terminal_;
    std::chrono::steady_clock::time_point last_line_{};
};

/// Writes a duration as `0:42`, `12:05` or `2:14:09`.
std::string duration_text(double seconds);

}  // namespace meshard
