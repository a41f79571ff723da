// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/mesh_io.h"
#include "io/vtk/mesh_blocks.h"

#include <filesystem>
#include <functional>
#include <vector>

namespace meshard {

/// Returns whether the extension is that of a file that refers to other files: .vtm, .vtpc, .pvd, .series.
bool is_collection(const std::filesystem::path& path);

/// Reads the members of a collection as blocks, each by `read_member`. Their names are those in the file (`block<i>` if
/// it has none), with '/' between levels; partitions of a .vtpc are merged like the pieces of a .pvtu. Of a series in
/// time (.pvd, .series) it reads the latest file, or the one of `options.time`; the time becomes the field array
/// `TimeValue`.
/// @throws IoError if it is damaged, or has no such time. @throws InvalidInput if there is no such block.
std::vector<MeshBlock>
read_collection(const std::filesystem::path& path, const ReadOptions& options,
                const std::function<std::vector<MeshBlock>(const std::filesystem::path&)>& read_member);

}  // namespace meshard
