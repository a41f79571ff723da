// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/registry/registry.h"

namespace meshard {

/// DoMINO for programs: all that it takes is made from the places of a case's points and the case's body.
///
/// Of the surface a point is told its place, its unit normal and its area (7 numbers, in this order), of the volume its place. Boxes are `surface_box` and
/// `volume_box`, in the coordinates of the points; distances to the body are measured in these, as the reference does. The grids are cut along X, among the
/// ranks that share the points.
ModelEntry domino_entry();

}  // namespace meshard
