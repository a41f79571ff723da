// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace meshard {

/// A file whose bytes may be damaged, and how what it belongs to is read.
struct DamageSample {
    enum class Reader { Mesh, Patches, MappedMesh, Shards, Checkpoint, PartitionFile, Grid };

    std::string name;               ///< of the file below the folder of samples, with '+' for '/'
    std::filesystem::path damaged;  ///< the file whose bytes change
    std::filesystem::path opened;   ///< the file or folder that is read
    Reader reader = Reader::Mesh;
    std::string bytes;  ///< of the file that is whole
};

/// Writes small files of every format that meshard reads by itself into an empty folder: each must be read there
/// without an error. The checkpoints and the odd ones among them are copies of those in tests/data.
std::vector<DamageSample> make_damage_samples(const std::filesystem::path& folder);

/// Reads it as users' files are read, all of it. Anything but success or an Error is thrown on.
/// @return whether it was read: false if it was refused.
bool survives_reading(const DamageSample& sample);

}  // namespace meshard
