// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/settings/settings.h"

#include <array>
#include <optional>
#include <string>
#include <vector>

namespace meshard {

/// What turns forces into coefficients: `data.forces` and `data.reference`.
struct ForceSettings {
    /// Of the free stream: its speed along x, or the three components of a vector, each a number or a column of the case table.
    std::vector<std::string> velocity = {"U_inf"};
    std::string density = "rho";    ///< for pressures in Pa: a number, or a column
    std::string ambient = "p_inf";  ///< pressure of the free stream, which pressures in Pa and kinematic ones may have: a number, or a column
    std::string area;               ///< reference area: a number, or a column of the case table; empty: no coefficients
    std::string drag = "Cd";        ///< columns with the coefficients of the solver; passed over where the table has no such column
    std::string lift = "Cl";
    std::array<double, 3> up{0, 0, 1};  ///< lift is along it, without its part along drag
};

/// The number that a text is; nothing for any other text, and for numbers that are not finite.
std::optional<double> number_in(const std::string& text);

/// @throws UsageError for a velocity or an `up` of another length.
ForceSettings force_settings(const Settings& settings);

}  // namespace meshard
