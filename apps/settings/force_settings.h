// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/settings/settings.h"

#include <array>
#include <string>
#include <vector>

namespace meshard {

/// What turns forces into coefficients: `data.forces` and `data.reference`.
struct ForceSettings {
    std::vector<double> velocity;  ///< of the free stream: its speed along x, or a vector; empty: the column `U_inf` of the case table
    double density = 1;            ///< for pressures in Pa
    std::string area;              ///< reference area: a number, or a column of the case table; empty: no coefficients
    std::string drag = "Cd";       ///< columns with the coefficients of the solver; passed over where the table has no such column
    std::string lift = "Cl";
    std::array<double, 3> up{0, 0, 1};  ///< lift is along it, without its part along drag
};

/// @throws UsageError for a velocity or an `up` of another length.
ForceSettings force_settings(const Settings& settings);

}  // namespace meshard
