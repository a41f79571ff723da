// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/vtk/vtk_xml_file.h"
#include "partition/mesh/mesh.h"

#include <filesystem>
#include <string>
#include <vector>

namespace meshard {

/// The pieces of one mesh as one: rows that `vtkGhostType` marks as duplicates are dropped; with `GlobalCellIds` and `GlobalPointIds`
/// rows are in that order and shared points are merged, else the pieces follow one after another. All pieces are of kind `kind`.
/// @throws IoError, beginning with `where`, if the pieces have different arrays or a cell is in two of them.
Mesh merge_pieces(std::vector<Mesh> pieces, MeshKind kind, const std::string& where);

/// Reads a .vtu or .vtp; through VTK if only VTK has its compressor. @throws IoError as `read_mesh`
Mesh read_vtk_piece(const std::filesystem::path& path);

/// Reads the pieces of an open .pvtu or .pvtp as one mesh, merged as `read_mesh` describes. The result has no array `vtkGhostType`,
/// unless it marks more than duplicates.
/// @throws IoError if the file or one of its pieces is missing or damaged, or a cell is in two pieces.
Mesh read_vtk_parallel(const VtkXmlFile& file, const std::filesystem::path& path);

}  // namespace meshard
