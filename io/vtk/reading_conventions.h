// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"

#include <string>
#include <vector>

namespace meshard {

/// Converts a mesh from the file's form to the one on which the rest of the program relies; a second call changes
/// nothing.
///
/// - Names, units and texts become UTF-8; text that is not UTF-8 is read as Latin-1. - Marks of ghosts become the UInt8
/// arrays `vtkGhostType`, from any number type, also from `vtkGhostLevels` (any level marks a duplicate, as in
///    VTK), and from VisIt's `avtGhostZones` and `avtGhostNodes`, which have the same bits.
///
/// `warnings` gets a sentence without its full stop, which begins with `file`, if texts were not UTF-8, and for each
/// array whose name refers to ghosts but whose values cannot be understood.
void apply_reading_conventions(Mesh& mesh, const std::string& file, std::vector<std::string>& warnings);

}  // namespace meshard
