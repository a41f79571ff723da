// SPDX-License-Identifier: Apache-2.0
#include "apps/settings/force_settings.h"

#include "apps/program/command_line.h"

#include <algorithm>

namespace meshard {

ForceSettings force_settings(const Settings& settings)
{
    ForceSettings forces;
    if (settings.has("data.reference.U_inf")) forces.velocity = settings.numbers("data.reference.U_inf");
    if (forces.velocity.size() > 1 && forces.velocity.size() != 3) {
        throw UsageError(settings.where("data.reference.U_inf") + " must be a speed, e.g. 40, or a vector, e.g. [40, 0, 0].");
    }
    if (settings.has("data.reference.rho")) {
        const auto rho = settings.numbers("data.reference.rho");
        if (rho.size() != 1 || !(rho[0] > 0)) throw UsageError(settings.where("data.reference.rho") + " must be one number above 0.");
        forces.density = rho[0];
    }
    if (settings.has("data.forces.area")) forces.area = settings.text("data.forces.area");
    if (settings.has("data.forces.cd")) forces.drag = settings.text("data.forces.cd");
    if (settings.has("data.forces.cl")) forces.lift = settings.text("data.forces.cl");
    if (settings.has("data.forces.up")) {
        const auto up = settings.numbers("data.forces.up");
        if (up.size() != 3) throw UsageError(settings.where("data.forces.up") + " must be three numbers, e.g. [0, 0, 1].");
        std::ranges::copy(up, forces.up.begin());
    }
    return forces;
}

}  // namespace meshard
