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
    std::string seen;  ///< the part of the mesh that is drawn, e.g. `cells at y = 0`; empty for the whole
    std::vector<ThemedPicture> pictures;
};

/// A plane across an axis, whose cells show a volume.
struct PlaneAcross {
    int axis = 1;  ///< 0 to 2: x, y or z, which equals `at` on the plane
    double at = 0;

    /// Parses a text such as `x=1.2`. @throws UsageError for any other
    static PlaneAcross from_text(const std::string& text);
    std::string text() const;
};

/// Draws one field of a case: the outside of a surface, all of a plane mesh, or the cells of a volume that each plane
/// crosses; without planes those at y = 0, or in the middle where that lies outside. Vectors and their differences are
/// drawn by length, differences of scalars in colours that diverge from zero.
///
/// @return one, or for a volume one a plane
/// @param predicted   (N, channels), of the cells or the points in the mesh's order
/// @param stem        beginning of the pictures' names
/// @throws InvalidInput for a plane beside the volume
std::vector<CasePictures> draw_case(const Mesh& whole, const std::string& field, bool on_cells,
                                    const at::Tensor& predicted, const at::Tensor& truth,
                                    std::span<const PlaneAcross> planes, const std::string& stem);

}  // namespace meshard
