// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "partition/mesh.h"

namespace meshard {

/// Reads a legacy .vtk file, or a serial VTK XML file of any compressor, through VTK's own readers. What VTK reports as errors or
/// warnings goes into the message, not to the terminal.
/// @throws IoError if VTK cannot read it, if it holds another kind of data set, or if this build has no VTK.
Mesh read_with_vtk(const std::filesystem::path& path);

}  // namespace meshard
