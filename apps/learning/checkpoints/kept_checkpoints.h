// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>

namespace meshard {

struct KeptCheckpoints {
    std::int64_t num_last = 0;           ///< the newest that stay besides `last` and `best`
    std::int64_t snapshot_interval = 0;  ///< in epochs: these stay for good; 0: none
};

/// Keeps `last` of a folder of checkpoints, which is that of this epoch, as epoch_000012.safetensors and .json, and
/// removes those of the folder that are neither among the newest nor snapshots. Where the disk can, the files are those
/// of `last` under a second name, without a copy.
/// @throws IoError if a file cannot be made.
void keep_last_checkpoint(const std::filesystem::path& folder, std::int64_t epoch, const KeptCheckpoints& kept);

}  // namespace meshard
