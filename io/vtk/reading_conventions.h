// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"

#include <string>
#include <vector>

namespace meshard {

/// Brings a mesh as its file has it into the form on which the rest of the program relies; a second call changes nothing.
///
/// - Names, units and texts are UTF-8; what is not is read as Latin-1.
/// - Marks of ghosts are the UInt8 arrays `vtkGhostType`, whatever number type the file has them in: also `vtkGhostLevels` (any level
///   marks a duplicate, as in VTK), and VisIt's `avtGhostZones` and `avtGhostNodes`, which have the same bits.
///
/// `warnings` gets a sentence without its end, which begins with `file`, if texts were no UTF-8, and for each array whose name speaks of
/// ghosts but whose values cannot be understood.
void apply_reading_conventions(Mesh& mesh, const std::string& file, std::vector<std::string>& warnings);

}  // namespace meshard
