// SPDX-License-Identifier: Apache-2.0
// How meshes are read and written: what all formats understand.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/bytes/block_codec.h"

namespace meshard {

struct WriteOptions {
    Compression compression = Compression::None;    ///< none, so that a reader can map the file instead of copying it
    bool sync = true;           ///< wait until the bytes are on the disk, not only with the system
};

struct ReadOptions {
    std::optional<double> time;             ///< of a case or series; none: the latest
    std::vector<std::string> blocks;        ///< see `is_wanted_block`; empty: what each format gives by default
    std::vector<std::string>* warnings = nullptr;   ///< gets a sentence for what was left out
};

}  // namespace meshard
