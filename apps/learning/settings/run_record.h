// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/settings/settings.h"

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// Writes RUN_DIR/resolved_config.yaml: all settings with their sources, and as the last line the version of runs and a hash of the lines above. @throws
/// IoError
void write_run_settings(const std::filesystem::path& run_dir, const Settings& settings);

/// The settings of a run. A file without that last line, as earlier versions wrote it, is read as it is.
/// @param dropped   as of `read_training_settings`
/// @throws IoError if the file is missing or differs from what was written; UnknownVersion; and as `read_training_settings`
Settings read_run_settings(const std::filesystem::path& run_dir, std::span<const std::string> overrides = {}, std::vector<std::string>* dropped = nullptr);

}  // namespace meshard
