// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/bytes/io_options.h"
#include "io/vtk/mesh_blocks.h"
#include "partition/mesh/mesh.h"

#include <filesystem>
#include <vector>

namespace meshard {

/// Reads a legacy .vtk file, or a serial VTK XML file of any compressor, through VTK's own readers. Errors and warnings
/// of VTK become part of the message and are not printed to the terminal.
/// @throws IoError if VTK cannot read it, if it holds another kind of data set, or if this build has no VTK.
Mesh read_with_vtk(const std::filesystem::path& path);

/// Reads a file of CGNS (.cgns), EnSight Gold and 6 (.case, .encas) or Exodus II (any other extension); each zone, part
/// or element block is a block, structured ones as hexahedra. If there are several times, reads the latest, or
/// `options.time`, which becomes the field array `TimeValue`. Boundary patches of CGNS
/// (`.../Patches/...`) and side sets of Exodus (`Side Sets/...`) are read if they are selected.
/// @throws IoError if VTK cannot read it, or this build has no such reader. @throws InvalidInput if there is no such
/// block.
std::vector<MeshBlock> read_blocks_with_vtk(const std::filesystem::path& path, const ReadOptions& options);

/// The times of a file of CGNS, EnSight or Exodus, among which `options.time` chooses; none if it has no times.
/// @throws IoError if VTK cannot read it, or this build has no such reader.
std::vector<double> times_with_vtk(const std::filesystem::path& path);

}  // namespace meshard
