// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"

#include <ATen/core/Tensor.h>

#include <span>
#include <string>
#include <vector>

namespace meshard {

/// A picture for light and one for dark screens: the bytes of PNG files, called NAME.png and NAME_dark.png.
struct ThemedPicture {
    std::string name, light, dark;
};

/// Pictures of one field of one case: the truth, the prediction and their difference, with the same camera.
struct CasePictures {
    std::string run, id, split, field;
    std::string why;   ///< best, median or worst
    std::string seen;  ///< what of the mesh is seen, where that is not its surface; else empty
    std::vector<ThemedPicture> pictures;
};

/// A plane across an axis, through which a volume is looked at.
struct PlaneAcross {
    int axis = 1;  ///< 0 to 2: x, y or z, which is `at` on it
    double at = 0;

    /// Of a text such as `x=1.2`. @throws UsageError for any other
    static PlaneAcross from_text(const std::string& text);
    std::string text() const;
};

/// Draws one field of a case: of a surface the outside, of a plane mesh all, of a volume the cells that each of the planes crosses; without planes those at
/// y = 0 (or, where that lies outside, in its middle). Vectors are drawn by their length, the difference of vectors by its length; differences of scalars in
/// colours that part from zero.
///
/// @return one, or of a volume one a plane
/// @param predicted   (N, channels), of the cells or the points in the mesh's order
/// @param stem        how the pictures' names begin
/// @throws InvalidInput for a plane beside the volume, with its box
std::vector<CasePictures> draw_case(const Mesh& whole, const std::string& field, bool on_cells, const at::Tensor& predicted, const at::Tensor& truth,
                                    std::span<const PlaneAcross> planes, const std::string& stem);

}  // namespace meshard
