// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/bytes/io_options.h"
#include "io/vtk/vtk_xml_file.h"
#include "partition/mesh/mesh.h"

#include <filesystem>
#include <string>
#include <vector>

namespace meshard {

/// Merges the pieces of one mesh: rows that `vtkGhostType` marks as duplicates are dropped; with `GlobalCellIds` and
/// `GlobalPointIds` rows have that order and shared points are merged, otherwise the pieces are concatenated. All
/// pieces must be of kind `kind`. `GlobalPointIds` that give one id to points at different positions, as when each
/// piece counts from 0, are not used, with a warning.
/// @throws IoError, with a message that begins with `where`, if the pieces have different arrays or a cell is in two of
/// them.
Mesh merge_pieces(std::vector<Mesh> pieces, MeshKind kind, const std::string& where, const ReadOptions& options);

/// Reads a .vtu or .vtp; through VTK if only VTK has its compressor. If the file has several times, reads the first, or
/// `options.time`, which becomes the field array `TimeValue`.
/// @throws IoError as `read_mesh`
Mesh read_vtk_piece(const std::filesystem::path& path, const ReadOptions& options);

/// Reads the pieces of a .pvtu or .pvtp as one mesh, merged as `read_mesh` describes. The result has no array
/// `vtkGhostType`, unless it marks more than duplicates.
/// @throws IoError if the file or one of its pieces is missing or damaged, or a cell is in two pieces.
Mesh read_vtk_parallel(const std::filesystem::path& path, const ReadOptions& options);

}  // namespace meshard
