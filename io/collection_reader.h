// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/mesh_io.h"
#include "io/vtk/mesh_blocks.h"

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace meshard {

/// Returns whether the extension is that of a file that refers to other files: .vtm, .vtpc, .pvd, .series.
bool is_collection(const std::filesystem::path& path);

/// A file of a series in time.
struct TimedFile {
    double time = 0;
    std::string name;   ///< of the block, where several files have one time
    std::string file;   ///< as in the index: absolute or relative to its folder
    std::string group;  ///< of a .pvd; read_mesh ignores it
};

/// The files that a .pvd or .series lists, in its order.
/// @throws IoError if it is damaged or lists no files.
std::vector<TimedFile> timed_files(const std::filesystem::path& path);

/// Reads the members of a collection as blocks, each by `read_member`. Their names are those in the file (`block<i>` if
/// it has none), with '/' between levels; partitions of a .vtpc are merged like the pieces of a .pvtu. Of a series in
/// time (.pvd, .series) it reads the latest file, or the one of `options.time`; the time becomes the field array
/// `TimeValue`.
/// @throws IoError if it is damaged, or has no such time. @throws InvalidInput if there is no such block.
std::vector<MeshBlock>
read_collection(const std::filesystem::path& path, const ReadOptions& options,
                const std::function<std::vector<MeshBlock>(const std::filesystem::path&)>& read_member);

}  // namespace meshard
