// SPDX-License-Identifier: Apache-2.0
// Options for reading and writing meshes, the same for all formats.
#pragma once

#include "io/bytes/block_codec.h"

#include <optional>
#include <string>
#include <vector>

namespace meshard {

struct WriteOptions {
    Compression compression = Compression::None;  ///< the default lets readers map the file instead of copying it
    bool sync = true;                             ///< wait until the bytes are on the disk (fsync)
};

struct ReadOptions {
    std::optional<double> time;                    ///< time to read of a case or series; not set: the latest
    std::vector<std::string> blocks;               ///< see `is_wanted_block`; empty: the default of each format
    std::vector<std::string>* warnings = nullptr;  ///< a sentence is appended for everything that is not read
};

}  // namespace meshard
