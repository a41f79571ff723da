// SPDX-License-Identifier: Apache-2.0
#include "io/vtk/vtk_bridge.h"
#include "partition/error.h"

namespace meshard {

Mesh read_with_vtk(const std::filesystem::path& path)
{
    throw IoError(
        "read_mesh: {} needs VTK, and this build has none, as no wheel has. Convert the file to .vtu or .vtp, "
        "uncompressed or with zlib, in ParaView or by "
        "`meshio convert`, or build meshard from source with -DMESHARD_WITH_VTK=ON.",
        path.string());
}

}  // namespace meshard
