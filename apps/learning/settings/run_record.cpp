// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/settings/run_record.h"

#include "apps/learning/settings/training_config.h"
#include "io/bytes/atomic_file.h"
#include "io/bytes/content_hash.h"
#include "io/bytes/hashed_json.h"
#include "io/bytes/mapped_file.h"
#include "partition/error.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace meshard {
namespace {

// The record is the first line, since a file that was cut short, like those of earlier versions, lacks a last one.
constexpr std::string_view kRecordBegin = "# meshard run ", kRecordVersion = "1";

std::filesystem::path file_in(const std::filesystem::path& run_dir)
{
    return run_dir / "resolved_config.yaml";
}

void require_unchanged(const std::filesystem::path& path, std::string_view text)
{
    if (text.starts_with('#') ? text.find("\n") == std::string_view::npos
                              : text.find_first_not_of(" \n") == std::string_view::npos)
        throw IoError(
            "run: {} is damaged: it has no settings. Copy the file from where the run was made, or train it again.",
            path.string());
    if (!text.starts_with(kRecordBegin)) return;  // an earlier version wrote the file
    const auto end = text.find('\n');
    const auto record = text.substr(kRecordBegin.size(), end - kRecordBegin.size()), lines = text.substr(end + 1);
    const auto version = record.substr(0, record.find(' '));
    if (version != kRecordVersion)
        throw UnknownVersion("run: " + path.string() + ", the settings of a run,", std::string(version),
                             std::string(kRecordVersion));
    const auto stated = record.substr(std::min(version.size() + 1, record.size()));
    if (const auto hash = hash_text(xxh64_of_text(lines)); hash != stated)
        throw IoError(
            "run: {} is damaged or was changed: its lines have the hash {}, and when it was written had {}. Settings "
            "are changed by "
            "words, e.g. training.num_epochs=20 after --resume; to use the file as it is, remove its first line.",
            path.string(), hash, stated);
}

}  // namespace

void write_run_settings(const std::filesystem::path& run_dir, const Settings& settings)
{
    const auto lines = settings.to_yaml(true);
    write_file_atomically(file_in(run_dir), fmt::format("{}{} {}\n{}", kRecordBegin, kRecordVersion,
                                                        hash_text(xxh64_of_text(lines)), lines));
}

Settings read_run_settings(const std::filesystem::path& run_dir, std::span<const std::string> overrides,
                           std::vector<std::string>* dropped)
{
    const auto path = file_in(run_dir);
    const auto file = MappedFile::open(path, "run");
    require_unchanged(path, file->text());
    std::vector<std::string> words(overrides.begin(), overrides.end());
    // Runs of earlier versions have keys that were removed: `logging.jsonl` had only one value;
    // `training.force_weights` changed training, so such a run cannot be resumed.
    if (file->text().find("\n  jsonl: ") != std::string_view::npos) words.insert(words.begin(), "~logging.jsonl");
    if (!dropped && file->text().find("\n  force_weights: ") != std::string_view::npos)
        words.insert(words.begin(), "~training.force_weights");
    return read_training_settings(path, words, dropped);
}

}  // namespace meshard
