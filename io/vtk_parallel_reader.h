// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/vtk_xml_file.h"
#include "partition/mesh.h"

namespace meshard {

/// Reads the pieces of an open .pvtu or .pvtp as one mesh; `read_mesh` says how rows are merged. `vtkGhostType` is left out of the
/// result, unless it says more than which rows were duplicates.
/// @throws IoError if the file or one of its pieces is missing or damaged, or a cell is in two pieces.
Mesh read_vtk_parallel(const VtkXmlFile& file, const std::filesystem::path& path);

}  // namespace meshard
