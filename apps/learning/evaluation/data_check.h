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

/// What the data of a run say of themselves, a sentence each.
struct DataFindings {
    std::vector<std::string> found;           ///< signs, the highest pressure, force closure
    std::vector<std::string> warnings;        ///< what a user should look at
    std::vector<std::string> contradictions;  ///< what cannot all be right, with cases, figures, and what to do
    nlohmann::ordered_json numbers;           ///< what was found, for programs
};

/// Compares the figures of the cases with each other, with the settings and with the case table:
/// - the integral of the true fields with the table's coefficients (force closure), where the fields have pressure and shear stress. Apart by more than
///   0.01 + 3 % is a contradiction; another kind of field, another area, or shear stress of another scale is named if it closes the forces of all cases;
/// - where normals point, and the shear stress's sign: one for all cases. What is not clear (an open surface, no mean shear) is passed over;
/// - the highest pressure of a surface, which at a stagnation point is the dynamic pressure: a contradiction where it fits another kind in all cases and not
///   the one that is said, unless the forces close;
/// - values that are not finite, cells without area, values beyond 20 standard deviations, channels and `data.constants` that are the same everywhere;
/// - cases of two splits with the same or mirrored points and fields.
/// @param figures   of all cases: train, val, test
DataFindings judge_data(const CaseLists& cases, std::span<const CaseFigures> figures, const DataConfig& data, const ForceSettings& settings,
                        const JudgedFields& layout);

}  // namespace meshard
