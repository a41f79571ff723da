// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/bytes/io_options.h"
#include "partition/mesh/mesh.h"

#include <filesystem>

namespace meshard {

/// Reads a PLY file (ascii, binary little or big endian) as a surface: elements `vertex` and `face`.
///
/// Coordinates keep their type if they share one floating type; else they become doubles. Other scalar properties
/// become point and cell arrays with their own type and name; nx ny nz become `Normals`, red green blue (alpha) `RGB`
/// (`RGBA`) if they have one type. Other elements and lists other than the faces' points are skipped. In an ascii file
/// with one row on each line, values beyond the announced ones are skipped, with a warning.
/// @throws IoError if the file is truncated, damaged or no PLY file.
Mesh read_ply(const std::filesystem::path& path, const ReadOptions& options = {});

}  // namespace meshard
