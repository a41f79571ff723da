// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/surface_facing.h"

#include <ATen/core/Tensor.h>

#include <span>
#include <string>

namespace meshard {

/// Triangles to which distances are measured.
struct WallSurface {
    at::Tensor vertices;   ///< (V, 3), double
    at::Tensor faces;      ///< (F, 3), int64; with the orientation of the polygons
    SurfaceFacing facing;  ///< facing of all surfaces together
};

/// Reads several surfaces as one. Each word is a surface file, or, if there is no such file, a patch of the case (or a
/// block of the file) `mesh`. Polygons with more corners are split into triangles around the mean of their corners;
/// lines and vertices are left out.
/// @throws IoError, InvalidInput naming the word: neither a file nor a patch, no polygons, solid cells, coordinates
///         that are not finite
WallSurface read_walls(std::span<const std::string> words, const std::string& mesh, Orient orient = Orient::AsIs);

}  // namespace meshard
