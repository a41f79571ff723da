// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_list.h"
#include "apps/learning/settings/force_settings.h"
#include "partition/mesh/surface_geometry.h"

#include <array>
#include <optional>
#include <span>
#include <string>

namespace meshard {

/// Sums over a surface: a area vectors by the order of the points, A their lengths, x places, p pressure, tau wall shear stress.
struct ForceSums {
    Vector3 true_pressure{}, true_shear{};            ///< sum p a, tau A of the truth
    Vector3 predicted_pressure{}, predicted_shear{};  ///< and of the prediction
    Vector3 area_vector{};                            ///< sum a; zero of a closed surface
    Vector3 place{};                                  ///< sum x A
    double outward = 0;                               ///< sum x.a
    double area = 0;                                  ///< sum A

    static constexpr int kNumbers = 20;
};

/// How the data count: -1 where the order of the points makes normals that point into the body; -1 where the shear stress is what the body does to the fluid
/// (OpenFOAM).
struct ForceSigns {
    int normal = 1, shear = 1;
};

/// The free stream of a case, and what makes forces coefficients.
struct FlowReference {
    Vector3 drag{1, 0, 0}, lift{0, 0, 1};
    double scale = 1;  ///< coefficient = scale * sum of the field times area: 1 / (0.5 U^2 A) for kinematic fields
};

/// Drag and lift coefficient of one case, by its fields.
struct Coefficients {
    double drag_true = 0, drag_predicted = 0, lift_true = 0, lift_predicted = 0;
    double pressure_drag_true = 0, pressure_drag_predicted = 0;  ///< the part of drag that is pressure's
};

/// Where normals point: sum (x - centre).a > 0 is outwards, also of a half body. Which sign shear has: air drags a body along, so that the mean of tau along
/// the free stream is positive if tau is the stress on the body.
ForceSigns signs_of(const ForceSums& sums, const Vector3& drag_direction);

/// By the fields' own signs, found from the truth. Shear counts if it was summed.
Coefficients coefficients(const ForceSums& sums, const FlowReference& flow);

/// Nothing, and why, where the settings and the table do not say speed, density (of pressures in Pa) or area. @throws InvalidInput where `up` lies along the
/// free stream.
/// @param pressure_kind   kinematic, static or cp: what pressure and shear are divided by
std::optional<FlowReference> flow_reference(const ForceSettings& settings, const CaseSource& source, const std::string& pressure_kind, std::string& why);

/// A number of the case table, nothing where it has no such column or no number there.
std::optional<double> table_value(const CaseSource& source, const std::string& column);

/// A number that a setting says, or that the case has in the column which the setting names; nothing where it has none.
std::optional<double> number_of_case(const std::string& text, const CaseSource& source);

/// The mean of a column over cases, nothing unless all of them have it.
std::optional<double> table_mean(std::span<const CaseSource> cases, const std::string& column);

}  // namespace meshard
