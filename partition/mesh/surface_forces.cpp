// SPDX-License-Identifier: Apache-2.0
#include "partition/mesh/surface_forces.h"

#include "partition/error.h"

#include <cmath>

namespace meshard {

namespace {

void add_load(Vector3& force, Vector3& moment, const Vector3& load, const Vector3& arm)
{
    for (int d = 0; d < 3; ++d) {
        force[d] += load[d];
        moment[d] += arm[(d + 1) % 3] * load[(d + 2) % 3] - arm[(d + 2) % 3] * load[(d + 1) % 3];
    }
}

void require_size(const char* name, std::size_t size, std::size_t num_cells)
{
    if (size != num_cells) {
        throw InvalidInput("integrate_forces: there are {} {} for {} cells; each cell needs one.", size, name,
                           num_cells);
    }
}

}  // namespace

SurfaceForces integrate_forces(std::span<const Vector3> areas, std::span<const Vector3> centroids,
                               std::span<const double> pressures, std::span<const Vector3> tractions,
                               const Vector3& centre)
{
    require_size("centroids", centroids.size(), areas.size());
    require_size("pressures", pressures.size(), areas.size());
    if (!tractions.empty()) require_size("tractions", tractions.size(), areas.size());

    SurfaceForces sum;
    for (std::size_t i = 0; i < areas.size(); ++i) {
        const Vector3& a = areas[i];
        const double area = std::hypot(a[0], a[1], a[2]);
        const Vector3 arm{centroids[i][0] - centre[0], centroids[i][1] - centre[1], centroids[i][2] - centre[2]};
        sum.area += area;
        add_load(sum.pressure_force, sum.pressure_moment,
                 {-pressures[i] * a[0], -pressures[i] * a[1], -pressures[i] * a[2]}, arm);
        if (tractions.empty()) continue;
        const Vector3& t = tractions[i];
        add_load(sum.viscous_force, sum.viscous_moment, {t[0] * area, t[1] * area, t[2] * area}, arm);
    }
    return sum;
}

}  // namespace meshard
