// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
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
    std::string when = {};  ///< time of a state of a run, e.g. `t = 0.5`; else empty
    std::string why;        ///< best, median or worst
    std::string seen;       ///< the part of the mesh that is drawn, e.g. `cells at y = 0`; empty for the whole
    std::vector<ThemedPicture> pictures;
};

/// A plane across an axis, whose cells show a volume.
struct PlaneAcross {
    int axis = 1;  ///< 0 to 2: x, y or z, which equals `at` on the plane
    double at = 0;

    /// Parses a text such as `x=1.2`. @throws UsageError for any other
    static PlaneAcross from_text(const std::string& text);
    std::string text() const;
    bool operator==(const PlaneAcross&) const = default;
};

/// A case with truth that is drawn, or a state of a run.
struct DrawnState {
    Mesh mesh = {};                         ///< points and cells, of a run as they truly are; arrays are ignored
    std::optional<DataArray> moved = {};    ///< predicted points, where they move
    at::Tensor predicted = {}, truth = {};  ///< (N, channels), of the cells or the points in the mesh's order
    std::string when = {};
};

/// Which channels of a state are a field.
struct DrawnField {
    std::string name;
    std::int64_t first = 0, count = 1;
    bool on_cells = true;
};

/// Draws one field of a case, or of some states of a run with the same colours and camera: the outside of a surface,
/// all of a plane mesh, or the cells of a volume that each plane crosses; without planes those at y = 0, or in the
/// middle where that lies outside. Vectors and their differences are drawn by length, differences of scalars in colours
/// that diverge from zero.
///
/// @return for each state one, or for a volume one a plane
/// @param stem        beginning of the pictures' names
/// @throws InvalidInput for a plane beside the volume
std::vector<CasePictures> draw_states(std::span<const DrawnState> states, const DrawnField& field,
                                      std::span<const PlaneAcross> planes, const std::string& stem);

/// An animation of one field of a run: the bytes of a GIF file below 1 MB.
struct Animation {
    std::string run = {}, id = {}, field, name;
    std::string gif = {};  ///< empty if there is none
    std::string why_none = {};
};

/// Draws the truth beside the prediction, state by state; of a volume the cells that the first plane crosses. Where
/// that takes too many bytes, every second state is left out.
Animation animate_states(std::span<const DrawnState> states, const DrawnField& field,
                         std::span<const PlaneAcross> planes, const std::string& stem);

}  // namespace meshard
