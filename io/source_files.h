// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <vector>

namespace meshard {

/// The files on which `read_mesh(path)` depends: `path` itself, the files to which an index or a collection refers
/// (.pvtu, .pvtp, .pvti, .vtm, .vtpc, .pvd, .series, .case) and those to which these refer, for an OpenFOAM case the
/// meshes and the fields of the latest time, and all files of a folder of Zarr. Sorted, without repetitions; all files
/// that are read, perhaps more. Files that do not exist are omitted.
/// @throws IoError if `path` is neither a file nor an OpenFOAM case.
std::vector<std::filesystem::path> source_files(const std::filesystem::path& path);

}  // namespace meshard
