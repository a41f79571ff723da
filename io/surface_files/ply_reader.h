// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"

#include <filesystem>

namespace meshard {

/// Reads a PLY file (ascii, binary little or big endian) as a surface: elements `vertex` and `face`.
///
/// Coordinates keep their type if it is a floating one. Other scalar properties become point and cell arrays of their own type
/// and name; nx ny nz become `Normals`, red green blue (alpha) `RGB` (`RGBA`) where they have one type. Other elements and lists
/// other than the faces' points are left out.
/// @throws IoError if the file is truncated, damaged or no PLY file.
Mesh read_ply(const std::filesystem::path& path);

}  // namespace meshard
