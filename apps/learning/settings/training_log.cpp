// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/settings/training_log.h"

#include "apps/console/console.h"
#include "io/bytes/atomic_file.h"
#include "io/bytes/content_hash.h"
#include "partition/error.h"

#include <fmt/core.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <iostream>
#include <sstream>
#include <unistd.h>

namespace meshard {
namespace {

template <class T>
std::string little_endian(T value)
{
    std::string bytes(sizeof value, '\0');
    std::memcpy(bytes.data(), &value, sizeof value);  // this only runs on machines that are little-endian
    return bytes;
}

std::string varint(std::uint64_t value)
{
    std::string bytes;
    for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
    return bytes + static_cast<char>(value);
}

/// Encodes a field that holds a text or another message.
std::string field(int number, const std::string& content)
{
    return varint(static_cast<std::uint64_t>(number) << 3 | 2) + varint(content.size()) + content;
}

std::string masked_checksum(std::string_view bytes)
{
    return little_endian(masked_crc32c(bytes));
}

/// Encodes the time, which is field 1 of an Event.
std::string wall_time()
{
    const auto now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    return std::string(1, '\x09') + little_endian(now);
}

/// Returns the last step that a line of metrics.jsonl covers; 0 if it covers none, or follows a line that does.
std::int64_t step_of(const nlohmann::json& line, std::int64_t steps_per_epoch)
{
    const auto phase = line.value("phase", "");
    if (phase == "train_step") return line.value("step", std::int64_t{0});
    if (phase == "train")
        return (line.value("epoch", std::int64_t{1}) - 1) * steps_per_epoch + line.value("steps", std::int64_t{0});
    return 0;
}

/// Whether a line was recorded after a run's last step; a resumed run records it again.
bool is_of_the_end(const nlohmann::json& line)
{
    const auto phase = line.value("phase", "");
    return phase == "test" || phase == "memory";
}

/// Collects the numbers of a line, named by their place in it, e.g. val/errors/pressure/mae.
void add_scalars(const nlohmann::ordered_json& value, const std::string& name,
                 std::vector<std::pair<std::string, double>>& scalars)
{
    if (value.is_number()) scalars.emplace_back(name, value.get<double>());
    if (!value.is_object()) return;
    for (const auto& [key, entry] : value.items()) {
        if (key != "step" && key != "epoch") add_scalars(entry, name + "/" + key, scalars);
    }
}

}  // namespace

EventFile::EventFile(const std::filesystem::path& folder)
{
    std::array<char, 256> host{};
    gethostname(host.data(), host.size() - 1);
    const auto seconds =
        std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    path_ = folder / fmt::format("events.out.tfevents.{}.{}.{}", seconds, host.data(), getpid());
    file_.open(path_, std::ios::binary);
    write(wall_time() + field(3, "brain.Event:2"));
}

void EventFile::add(std::int64_t step, const std::vector<std::pair<std::string, double>>& scalars)
{
    std::string summary;
    for (const auto& [name, value] : scalars)
        summary += field(1, field(1, name) + '\x15' + little_endian(static_cast<float>(value)));
    write(wall_time() + '\x10' + varint(static_cast<std::uint64_t>(step)) + field(5, summary));
}

void EventFile::write(const std::string& event)
{
    const auto length = little_endian<std::uint64_t>(event.size());
    file_ << length << masked_checksum(length) << event << masked_checksum(event) << std::flush;
    if (!file_) throw IoError("{} cannot be written. Is the disk full?", path_.string());
}

TrainingLog::TrainingLog(const std::filesystem::path& path, bool is_speaker)
    : path_(path), is_speaker_(is_speaker), is_terminal_(isatty(STDERR_FILENO) == 1)
{
}

void TrainingLog::go_back_to(std::int64_t step, std::int64_t steps_per_epoch, bool is_the_end)
{
    if (!is_speaker_ || path_.empty()) return;
    std::ostringstream all;
    all << std::ifstream(path_, std::ios::binary).rdbuf();
    std::istringstream lines(all.str());
    std::string kept;
    for (std::string text; std::getline(lines, text);) {
        const auto line = nlohmann::json::parse(text, nullptr, false);
        if (!line.is_object()) continue;  // the process ended in the middle of this line
        if (step_of(line, steps_per_epoch) > step) break;
        if (is_the_end && is_of_the_end(line)) continue;
        kept += text + '\n';
    }
    if (kept != all.str()) write_file_atomically(path_, kept);
}

void TrainingLog::record(const nlohmann::ordered_json& line)
{
    if (!is_speaker_ || path_.empty()) return;
    // Opened late, so that a run that failed early leaves no file.
    if (!file_.is_open()) file_.open(path_, std::ios::app);
    file_ << line.dump() << std::endl;
    if (!file_) throw IoError("{} cannot be written. Is the disk full?", path_.string());
    if (events_folder_.empty() || !(line.contains("step") || line.contains("epoch"))) return;
    std::vector<std::pair<std::string, double>> scalars;
    add_scalars(line, line.value("phase", ""), scalars);
    if (!events_) events_.emplace(events_folder_);
    events_->add(line.contains("step") ? line["step"].get<std::int64_t>() : line["epoch"].get<std::int64_t>(), scalars);
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
    if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
    return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

}  // namespace meshard
