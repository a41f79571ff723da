// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/bytes/io_options.h"
#include "partition/mesh/mesh.h"

#include <filesystem>

namespace meshard {

/// Reads an STL file, ascii or binary, as a surface of triangles in the file's order. Corners of exactly equal
/// coordinates become one point, numbered by first use. The file's normals are not kept: the order of the corners
/// defines them.
///
/// An ascii file of several solids gets the cell array `SolidId` (Int32, 0, 1, ... in the file's order) and the field
/// array `SolidName`. A binary file with more triangles than it announces, as from streaming writers (0 or 4294967295),
/// is read to its end, with a warning.
/// @throws IoError if the file is truncated, damaged or no STL file.
Mesh read_stl(const std::filesystem::path& path, const ReadOptions& options = {});

}  // namespace meshard
