// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"
#include "partition/nearest_name.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string_view>

namespace meshard {

/// Returns whether the extension is of CGNS, EnSight or Exodus, which `read_blocks_with_vtk` reads.
inline bool is_vtk_composite(const std::filesystem::path& path)
{
    constexpr std::string_view known[] = {".cgns", ".case", ".encas", ".e", ".exo", ".ex2", ".exii", ".g"};
    return std::ranges::find(known, lower_extension(path)) != std::end(known);
}

/// Extension of the file type that holds meshes of this kind without loss: `.vtp` or `.vtu`.
inline const char* extension_of(MeshKind kind)
{
    return kind == MeshKind::Surface ? ".vtp" : ".vtu";
}

}  // namespace meshard
