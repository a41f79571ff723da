// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"

namespace meshard {

/// Extension of the file type that holds meshes of this kind without loss: `.vtp` or `.vtu`.
inline const char* extension_of(MeshKind kind)
{
    return kind == MeshKind::Surface ? ".vtp" : ".vtu";
}

}  // namespace meshard
