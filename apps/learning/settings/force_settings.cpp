// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/settings/force_settings.h"

#include "apps/console/console.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace meshard {

std::optional<double> number_in(const std::string& text)
{
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
    return value;
}

ForceSettings force_settings(const Settings& settings)
{
    ForceSettings forces;
    if (const auto* velocity = settings.find("data.reference.U_inf")) forces.velocity = velocity->values;
    if (forces.velocity.size() != 1 && forces.velocity.size() != 3) {
        throw UsageError(settings.where("data.reference.U_inf") +
                         " must be a speed, e.g. 40, or a vector, e.g. [40, 0, 0]; columns of data.cases may stand for numbers, e.g. [U_x, 0, U_z].");
    }
    if (const auto* density = settings.find("data.reference.rho")) {
        const auto& rho = density->values;
        if (rho.size() != 1 || (number_in(rho[0]) && !(*number_in(rho[0]) > 0)))
            throw UsageError(settings.where("data.reference.rho") + " must be one number above 0, or a column of data.cases.");
        forces.density = rho[0];
    }
    if (const auto* ambient = settings.find("data.reference.p_inf"); ambient && ambient->values.size() == 1) forces.ambient = ambient->values[0];
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
