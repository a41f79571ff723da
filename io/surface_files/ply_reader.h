// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/bytes/io_options.h"
#include "partition/mesh/mesh.h"

#include <filesystem>

namespace meshard {

/// Reads a PLY file (ascii, binary little or big endian) as a surface: elements `vertex` and `face`.
///
/// Coordinates keep their type if they have one, a floating one; else they become doubles. Other scalar properties become point and cell arrays of their own
/// type and name; nx ny nz become `Normals`, red green blue (alpha) `RGB` (`RGBA`) where they have one type. Other elements and lists other than the faces'
/// points are left out. Of an ascii file with a row a line, what lines have beyond the announced values is left out, with a warning.
/// @throws IoError if the file is truncated, damaged or no PLY file.
Mesh read_ply(const std::filesystem::path& path, const ReadOptions& options = {});

}  // namespace meshard
