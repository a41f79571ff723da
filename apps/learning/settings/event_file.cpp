// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/settings/event_file.h"

#include "io/bytes/content_hash.h"
#include "partition/error.h"

#include <fmt/core.h>

#include <array>
#include <chrono>
#include <cstring>
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

}  // namespace meshard
