// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/surface_geometry.h"

#include <span>

namespace meshard {

/// Force and moment of a fluid on a surface, by pressure and by viscosity.
struct SurfaceForces {
    double area = 0;
    Vector3 pressure_force{};
    Vector3 viscous_force{};
    Vector3 pressure_moment{};  ///< about `centre`
    Vector3 viscous_moment{};
};

/// Sums over cells: pressure_force = sum(-p a), viscous_force = sum(traction |a|), with `a` the cell's area vector out
/// of the body into the fluid and `traction` the stress of the fluid on the body; moments with the lever arm
/// centroid - centre.
///
/// OpenFOAM's wallShearStress is minus the traction: pass its negative. Summed in double, in the order of the
/// cells.
/// @param tractions  empty: no viscous part.
/// @throws InvalidInput if the sizes disagree.
SurfaceForces integrate_forces(std::span<const Vector3> areas, std::span<const Vector3> centroids,
                               std::span<const double> pressures, std::span<const Vector3> tractions,
                               const Vector3& centre = {});

}  // namespace meshard
