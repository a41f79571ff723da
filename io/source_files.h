// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <vector>

namespace meshard {

/// The files on which `read_mesh(path)` depends: `path` itself, the files that an index or a collection names (.pvtu, .pvtp, .vtm, .vtpc, .pvd,
/// .series, .case) and those that they name, and of an OpenFOAM case the meshes and the fields of the latest time. Ascending, each once; all files that
/// are read, perhaps more. Files that do not exist are left out.
/// @throws IoError if `path` is neither a file nor an OpenFOAM case.
std::vector<std::filesystem::path> source_files(const std::filesystem::path& path);

}  // namespace meshard
