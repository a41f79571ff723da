// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/cases/source_hash.h"

#include "io/bytes/atomic_file.h"
#include "io/bytes/content_hash.h"
#include "io/bytes/mapped_file.h"
#include "io/source_files.h"
#include "partition/error.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <optional>
#include <string>
#include <sys/stat.h>
#include <vector>

namespace meshard {
namespace {

using Files = std::vector<std::filesystem::path>;

/// Hashes all of a small file, or blocks at equal distances of a larger one, including its first and last bytes.
std::uint64_t sample_hash(const std::filesystem::path& path)
{
    constexpr std::size_t num_blocks = 16, block_bytes = std::size_t{64} << 10;
    const auto file = MappedFile::open(path, "hash_file");
    const auto bytes = file->bytes();
    if (bytes.size() <= num_blocks * block_bytes) return xxh64(bytes);
    const auto last = bytes.size() - block_bytes;
    std::string hashes;
    for (std::size_t i = 0; i < num_blocks; ++i)
        hashes += hash_text(xxh64(bytes.subspan(last / (num_blocks - 1) * i, block_bytes)));
    return xxh64_of_text(hashes + hash_text(xxh64(bytes.subspan(last))));
}

/// A cheap fingerprint of files by which changes are noticed.
struct SourceState {
    std::uint64_t hash = 0;
    /// Whether a later change would alter the file times, which may tick only every two seconds.
    bool is_settled = true;
};

SourceState state_of(const Files& files)
{
    constexpr std::int64_t nanoseconds_a_second = 1'000'000'000;
    const auto now =
        std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
    SourceState state;
    std::string text;
    for (const auto& file : files) {
        struct stat status = {};
        if (::stat(file.c_str(), &status) != 0) throw IoError("hash_file: {} cannot be read.", file.string());
        if (status.st_mtim.tv_sec + 2 >= now) state.is_settled = false;
        text += fmt::format("{} {} {} {}\n", file.filename().string(), status.st_size,
                            status.st_mtim.tv_sec * nanoseconds_a_second + status.st_mtim.tv_nsec,
                            hash_text(sample_hash(file)));
    }
    state.hash = xxh64_of_text(text);
    return state;
}

std::uint64_t whole_hash(const Files& files)
{
    if (files.size() == 1) return xxh64_of_file(files.front());
    std::string text;
    for (const auto& file : files) text += fmt::format("{} {}\n", file.filename().string(), hash_file(file));
    return xxh64_of_text(text);
}

/// Returns a checksum of a note, by which a damaged note is noticed.
std::string check_of(const SourceState& state, std::uint64_t hash)
{
    return hash_text(xxh64_of_text(hash_text(state.hash) + " " + hash_text(hash)));
}

std::optional<std::uint64_t> noted_hash(const std::filesystem::path& note, const SourceState& state)
{
    std::ifstream stream(note);
    const auto content = nlohmann::json::parse(stream, nullptr, false);
    if (!content.is_object() || content.value("state", "") != hash_text(state.hash)) return std::nullopt;
    const auto& hash = content.find("hash");
    if (hash == content.end() || !hash->is_number_unsigned() || content.value("check", "") != check_of(state, *hash))
        return std::nullopt;
    return hash->get<std::uint64_t>();
}

void write_note(const std::filesystem::path& note, const std::filesystem::path& source, const SourceState& state,
                std::uint64_t hash)
{
    try {
        std::filesystem::create_directories(note.parent_path());
        write_file_atomically(note, nlohmann::ordered_json{{"source", source.string()},
                                                           {"state", hash_text(state.hash)},
                                                           {"hash", hash},
                                                           {"check", check_of(state, hash)}}
                                            .dump() +
                                        "\n");
    } catch (const IoError&) {  // the note is optional: the disk may be full, or the folder read-only
    } catch (const std::filesystem::filesystem_error&) {
    }
}

}  // namespace

std::uint64_t source_hash(const std::filesystem::path& source, const std::filesystem::path& note, bool verify)
{
    const auto files = source_files(source);
    const auto state = state_of(files);
    if (!verify) {
        if (const auto hash = noted_hash(note, state)) return *hash;
    }
    const auto hash = whole_hash(files);
    if (state_of(files).hash != state.hash)
        throw IoError("hash_file: {} changed while it was read. Start again when it is complete.", source.string());
    if (state.is_settled) write_note(note, source, state, hash);
    return hash;
}

}  // namespace meshard
