// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/settings/settings.h"

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// Writes RUN_DIR/resolved_config.yaml: a first line with the version of runs and a hash of the other lines, then all
/// settings with their sources.
/// @throws IoError
void write_run_settings(const std::filesystem::path& run_dir, const Settings& settings);

/// Reads the settings of a run. A file of an earlier version, which has no such first line, is read without a check.
/// @param dropped   as of `read_training_settings`
/// @throws IoError if the file is missing or differs from what was written; UnknownVersion; and as
/// `read_training_settings`
Settings read_run_settings(const std::filesystem::path& run_dir, std::span<const std::string> overrides = {},
                           std::vector<std::string>* dropped = nullptr);

}  // namespace meshard
