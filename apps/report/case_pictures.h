// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <vector>

namespace meshard {

/// A picture for light and one for dark screens: PNG files.
struct ThemedPicture {
    std::filesystem::path light, dark;
};

/// Pictures of one field of one case: the truth, the prediction and their difference, with the same camera.
struct CasePictures {
    std::string run, id, split, field;
    std::string why;   ///< best, median or worst
    std::string seen;  ///< what of the mesh is seen, where that is not its surface; else empty
    std::vector<ThemedPicture> pictures;
};

/// Draws one field of a case: of a surface the outside, of a plane mesh all, of a volume the cells that the plane y = 0 crosses (or, where that lies outside,
/// the plane through its middle). Vectors are drawn by their length, the difference of vectors by its length.
///
/// @param predicted   (N, channels), of the cells or the points in the mesh's order
/// @param stem        how the files' paths begin
/// @throws IoError if a file cannot be written
CasePictures draw_case(const Mesh& whole, const std::string& field, bool on_cells, const at::Tensor& predicted, const at::Tensor& truth,
                       const std::filesystem::path& stem);

}  // namespace meshard
