// SPDX-License-Identifier: Apache-2.0
#include "io/vtk/vtk_bridge.h"
#include "partition/error.h"

namespace meshard {

std::vector<double> times_with_vtk(const std::filesystem::path& path)
{
    read_blocks_with_vtk(path, {});  // throws
    return {};
}

std::vector<MeshBlock> read_blocks_with_vtk(const std::filesystem::path& path, const ReadOptions&)
{
    throw IoError("read_mesh: {} needs VTK's readers of CGNS, EnSight and Exodus, and this build has none, as no "
                  "wheel has. Convert the file to .vtu in ParaView, or build meshard from source where VTK has them.",
                  path.string());
}

}  // namespace meshard
