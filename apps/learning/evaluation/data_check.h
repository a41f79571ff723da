// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_list.h"
#include "apps/learning/evaluation/case_figures.h"
#include "apps/learning/settings/force_settings.h"

#include <nlohmann/json.hpp>

#include <span>
#include <string>
#include <vector>

namespace meshard {

/// Findings about the data of a run, a sentence each.
struct DataFindings {
    std::vector<std::string> found;           ///< signs, the highest pressure, force closure
    std::vector<std::string> warnings;        ///< what a user should look at
    std::vector<std::string> contradictions;  ///< what cannot all be right, with cases, figures, and what to do
    nlohmann::ordered_json numbers;           ///< the findings as JSON
};

/// Compares the figures of the cases with each other, with the settings and with the case table:
/// - the integral of the true fields with the table's coefficients (force closure), where the fields have pressure and
///   shear stress. A difference of more than 0.01 + 3 % is a contradiction, which names another kind of pressure,
///   reference area or scale of the shear stress if that closes nine in ten of these cases and leaves the others
///   closed;
/// - the direction of the normals and the sign of the shear stress, which must be the same in all cases; those that do
///   not show it (an open surface, no mean shear) are passed over;
/// - the highest pressure of a surface, which at a stagnation point is the dynamic pressure: a contradiction if it fits
///   another kind of pressure in all cases and not the configured one, unless force closure could be checked;
/// - values that are not finite, cells without area, values beyond 20 standard deviations, channels and
///   `data.constants` that are the same everywhere;
/// - cases of two splits with the same or mirrored points and fields.
/// @param figures   figures of all cases, in the order train, val, test
DataFindings judge_data(const CaseLists& cases, std::span<const CaseFigures> figures, const DataConfig& data,
                        const ForceSettings& settings, const JudgedFields& layout);

}  // namespace meshard
