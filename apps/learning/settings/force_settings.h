// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/settings/setting_table.h"

#include <array>
#include <string>
#include <vector>

namespace meshard {

/// The quantities that turn forces into coefficients: `data.forces` and `data.reference`.
struct ForceSettings {
    /// The free stream: its speed along x, or three components, each a number or a column of the case table.
    std::vector<std::string> velocity = {"U_inf"};
    std::string density = "rho";  ///< for pressures in Pa: a number, or a column
    std::string ambient;          ///< pressure of the free stream: a number, or a column; empty: not said
    std::string area;             ///< empty: no coefficients
    std::string drag = "Cd";
    std::string lift = "Cl";
    std::array<double, 3> up{0, 0, 1};
    std::string length;               ///< of moments: a number, or a column; empty: no moments
    std::vector<std::string> center;  ///< about which moments are: three numbers or columns; empty: the origin

    void add_keys(SettingTable& keys)
    {
        keys.add("data.forces.area", area, {},
                 "reference area of the coefficients in metrics: a number, or a column of the table; half the area for "
                 "half bodies");
        keys.add("data.forces.cd", drag, {},
                 "column with the solver's drag coefficient, for metrics; passed over where the table lacks it");
        keys.add("data.forces.cl", lift, {}, "column with the solver's lift coefficient");
        keys.add("data.forces.up", up, {}, "direction of lift, less its part along the free stream");
        keys.add("data.forces.length", length, {},
                 "reference length of the moment coefficients: a number, or a column of the table");
        keys.add("data.forces.center", center, {},
                 "point about which moments are computed: x, y, z, each a number or a column; none: the origin");
    }
};

}  // namespace meshard
