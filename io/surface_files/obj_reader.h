// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"

#include <filesystem>

namespace meshard {

/// Reads a Wavefront .obj file as a surface: its points `p`, lines `l` and faces `f`, in VTK's order, and each kind in
/// the order of the file. Points are Float64 and keep the file's numbering. Texture coordinates, normals and materials
/// are not kept.
///
/// A file with several groups or objects (`g`, `o`) gets the cell array `GroupId` (Int32) and the field array
/// `GroupName`.
/// @throws IoError if it is damaged, or has no points.
Mesh read_obj(const std::filesystem::path& path);

}  // namespace meshard
