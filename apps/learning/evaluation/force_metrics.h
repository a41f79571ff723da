// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_list.h"
#include "apps/learning/settings/force_settings.h"
#include "partition/mesh/surface_geometry.h"

#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// Sums over a surface: a area vectors by the order of the points, A their lengths, x places, p pressure, tau wall
/// shear stress.
struct ForceSums {
    Vector3 true_pressure{}, true_shear{};                ///< sum p a, tau A of the truth
    Vector3 predicted_pressure{}, predicted_shear{};      ///< the same of the prediction
    Vector3 area_vector{};                                ///< sum a; zero for a closed surface
    Vector3 place{};                                      ///< sum x A
    Vector3 true_pressure_moment{}, true_shear_moment{};  ///< sum p x cross a, x cross tau A, about the origin
    Vector3 predicted_pressure_moment{}, predicted_shear_moment{};  ///< the same of the prediction
    Vector3 area_moment{};                                          ///< sum x cross a
    double outward = 0;                                             ///< sum x.a
    double area = 0;                                                ///< sum A

    static constexpr int kNumbers = 35;
};

/// Signs of the data: `normal` is -1 if the order of the points makes normals point into the body, `shear` is -1 if the
/// shear stress is that of the body on the fluid (OpenFOAM).
struct ForceSigns {
    int normal = 1, shear = 1;
};

/// The free stream of a case, and the factor from forces to coefficients.
struct FlowReference {
    Vector3 drag{1, 0, 0}, lift{0, 0, 1};
    double scale = 1;    ///< coefficient = scale * sum of the field times area: 1 / (0.5 U^2 A) for kinematic fields
    double ambient = 0;  ///< pressure of the free stream, above which a surface feels the field's
    std::optional<double> length = {};  ///< of the moment coefficients; nothing: there are none
    Vector3 center{};                   ///< about which moments are
    std::string why_no_moments = {};    ///< what of length and centre the settings name and the case does not say
};

/// Names of coefficients in tables: of drag, lift, the force along lift times drag, and the moments about x, y, z.
inline constexpr std::array kForceCoefficients{"Cd", "Cl", "Cs", "Cmx", "Cmy", "Cmz"};

/// A coefficient of one case by its true and its predicted fields.
struct Coefficient {
    const char* name;
    double truth, predicted;
};

/// Coefficients of one case by its fields.
struct Coefficients {
    /// In the order of kForceCoefficients: drag, lift, Cs, and where a length is known the moments.
    std::vector<Coefficient> all;
    double pressure_drag_true = 0, pressure_drag_predicted = 0;  ///< the part of the drag that pressure makes
};

/// Numbers of drag and of lift.
using DragAndLift = std::array<std::optional<double>, 2>;

/// Finds the signs from the sums of the truth. Normals point outwards if sum (x - centre).a > 0, for a half body too; a
/// flat sheet has no inside, and its normals stay as they are.
/// Shear is the stress on the body if its mean along the free stream is positive, since air drags a body along.
ForceSigns signs_of(const ForceSums& sums, const Vector3& drag_direction);

/// Computes the coefficients with the signs that `signs_of` finds.
Coefficients coefficients(const ForceSums& sums, const FlowReference& flow);

/// Finds the free stream of a case in the settings and its table. Returns nothing, and says why in `why`, if speed,
/// density (for pressures in Pa) or area is missing, or `up` lies along the free stream.
/// @param pressure_kind   kinematic, static or cp: what pressure and shear are divided by
std::optional<FlowReference> flow_reference(const ForceSettings& settings, const CaseSource& source,
                                            const std::string& pressure_kind, std::string& why);

/// Returns the pressure of the free stream, in the units of pressures of a kind, which forces are above: that of
/// `data.reference`, or, where that says none, of pressures in Pa the number of the case's column p_inf, else 0.
/// Nothing where the case has no number in the column that `data.reference` names.
std::optional<double> ambient_pressure(const ForceSettings& settings, const CaseSource& source,
                                       const std::string& pressure_kind);

/// Returns a number of the case table; nothing where it has no such column or no number there.
std::optional<double> table_value(const CaseSource& source, const std::string& column);

/// Returns the number in the text of a setting, or that of the case in the column which the text names; nothing if
/// there is neither.
std::optional<double> number_of_case(const std::string& text, const CaseSource& source);

/// Returns the mean of a column over cases; nothing unless all of them have it.
std::optional<double> table_mean(std::span<const CaseSource> cases, const std::string& column);

}  // namespace meshard
