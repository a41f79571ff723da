// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/bytes/io_options.h"
#include "io/vtk/vtk_xml_file.h"
#include "partition/mesh/mesh.h"

#include <filesystem>
#include <string>
#include <vector>

namespace meshard {

/// The pieces of one mesh as one: rows that `vtkGhostType` marks as duplicates are dropped; with `GlobalCellIds` and `GlobalPointIds`
/// rows are in that order and shared points are merged, else the pieces follow one after another. All pieces are of kind `kind`.
/// `GlobalPointIds` that name one point at two places, as when each piece counts from 0, are not used, with a warning.
/// @throws IoError, beginning with `where`, if the pieces have different arrays or a cell is in two of them.
Mesh merge_pieces(std::vector<Mesh> pieces, MeshKind kind, const std::string& where, const ReadOptions& options);

/// Reads a .vtu or .vtp; through VTK if only VTK has its compressor. Of a file with several times the first, or `options.time`; its time
/// is in the field array `TimeValue`. @throws IoError as `read_mesh`
Mesh read_vtk_piece(const std::filesystem::path& path, const ReadOptions& options);

/// Reads the pieces of a .pvtu or .pvtp as one mesh, merged as `read_mesh` describes. The result has no array `vtkGhostType`,
/// unless it marks more than duplicates.
/// @throws IoError if the file or one of its pieces is missing or damaged, or a cell is in two pieces.
Mesh read_vtk_parallel(const std::filesystem::path& path, const ReadOptions& options);

}  // namespace meshard
