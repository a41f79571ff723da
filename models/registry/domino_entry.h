// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/registry/registry.h"

namespace meshard {

/// DoMINO for programs: all of its inputs are computed from the positions of a case's points and the case's body.
///
/// The inputs of a surface point are its position, unit normal and area (7 numbers, in this order), that of a volume
/// point its position. Boxes are `surface_box` and `volume_box`, in the coordinates of the points; distances to the
/// body are measured in these coordinates, as in the reference. The grids are cut along X, among the ranks that share
/// the points.
ModelEntry domino_entry();

}  // namespace meshard
