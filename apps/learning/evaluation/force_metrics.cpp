// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/evaluation/force_metrics.h"

#include "partition/mesh/vector_algebra.h"

#include <fmt/core.h>

#include <cmath>

namespace meshard {
namespace {

constexpr double kFlat = 1e-6;  // |sum (x - centre).a| / A^1.5 up to which a surface is flat but for rounding

/// Returns the unit vector; nothing for a vector without length.
std::optional<Vector3> direction_of(const Vector3& a)
{
    return norm(a) > 1e-9 ? std::optional(unit(a)) : std::nullopt;
}

std::string no_number(const CaseSource& source, const std::string& column, const std::string& key)
{
    return fmt::format("case {} has no number above 0 in the column '{}' of its table ({})", source.id, column, key);
}

}  // namespace

ForceSigns signs_of(const ForceSums& sums, const Vector3& drag_direction)
{
    if (!(sums.area > 0)) return {};
    const Vector3 center{sums.place[0] / sums.area, sums.place[1] / sums.area, sums.place[2] / sums.area};
    return {sums.outward - dot(center, sums.area_vector) < -kFlat * std::pow(sums.area, 1.5) ? -1 : 1,
            dot(sums.true_shear, drag_direction) < 0 ? -1 : 1};
}

Coefficients coefficients(const ForceSums& sums, const FlowReference& flow)
{
    const auto signs = signs_of(sums, flow.drag);
    // `areas` is the sum that a pressure of 1 everywhere has.
    const auto of_pressure = [&](const Vector3& sum, const Vector3& direction, const Vector3& areas) {
        return -signs.normal * flow.scale * (dot(sum, direction) - flow.ambient * dot(areas, direction));
    };
    const auto along = [&](const Vector3& pressure, const Vector3& shear, const Vector3& direction) {
        return of_pressure(pressure, direction, sums.area_vector) + signs.shear * flow.scale * dot(shear, direction);
    };
    Coefficients found;
    found.pressure_drag_true = of_pressure(sums.true_pressure, flow.drag, sums.area_vector);
    found.pressure_drag_predicted = of_pressure(sums.predicted_pressure, flow.drag, sums.area_vector);
    for (const auto& direction : {flow.drag, flow.lift, unit(cross(flow.lift, flow.drag))}) {
        found.all.push_back({kForceCoefficients[found.all.size()],
                             along(sums.true_pressure, sums.true_shear, direction),
                             along(sums.predicted_pressure, sums.predicted_shear, direction)});
    }
    if (!flow.length) return found;
    const auto moment = [&](const Vector3& pressure, const Vector3& shear, const Vector3& pressure_force,
                            const Vector3& shear_force, const Vector3& axis) {
        return (of_pressure(pressure - cross(flow.center, pressure_force), axis,
                            sums.area_moment - cross(flow.center, sums.area_vector)) +
                signs.shear * flow.scale * dot(shear - cross(flow.center, shear_force), axis)) /
               *flow.length;
    };
    for (int k = 0; k < 3; ++k) {
        Vector3 axis{};
        axis[k] = 1;
        found.all.push_back(
            {kForceCoefficients[3 + k],
             moment(sums.true_pressure_moment, sums.true_shear_moment, sums.true_pressure, sums.true_shear, axis),
             moment(sums.predicted_pressure_moment, sums.predicted_shear_moment, sums.predicted_pressure,
                    sums.predicted_shear, axis)});
    }
    return found;
}

std::optional<FlowReference> flow_reference(const ForceSettings& settings, const CaseSource& source,
                                            const std::string& pressure_kind, std::string& why)
{
    Vector3 velocity{};
    for (std::size_t c = 0; c < settings.velocity.size(); ++c) {
        const auto value = number_of_case(settings.velocity[c], source);
        if (!value) {
            why = settings.velocity[c] == "U_inf" && !source.columns.contains("U_inf")
                      ? "the speed of the free stream is not said (data.reference.U_inf)"
                      : no_number(source, settings.velocity[c], "data.reference.U_inf");
            return std::nullopt;
        }
        velocity[c] = *value;
    }
    const auto drag = direction_of(velocity);
    if (!drag) {
        why = "the free stream of case " + source.id + " does not flow: its speed is 0 (data.reference.U_inf)";
        return std::nullopt;
    }
    if (settings.area.empty()) {
        why = "the reference area is not said (data.forces.area)";
        return std::nullopt;
    }
    const auto area = number_of_case(settings.area, source).value_or(0.0);
    if (!(area > 0)) {
        why = fmt::format("case {} has no reference area above 0 ('{}')", source.id, settings.area);
        return std::nullopt;
    }
    if (!direction_of(settings.up)) {
        why = "data.forces.up is no direction";
        return std::nullopt;
    }
    const auto along = dot(settings.up, *drag);
    const auto lift = direction_of({settings.up[0] - along * (*drag)[0], settings.up[1] - along * (*drag)[1],
                                    settings.up[2] - along * (*drag)[2]});
    if (!lift) {
        why = fmt::format(
            "the free stream of case {} flows along data.forces.up, so that there is no direction of lift", source.id);
        return std::nullopt;
    }
    const auto speed_squared = dot(velocity, velocity);
    const auto density = pressure_kind == "static" ? number_of_case(settings.density, source) : 1.0;
    if (!density || !(*density > 0)) {
        why = settings.density == "rho" && !density
                  ? "the density is not said (data.reference.rho), and pressures are in Pa (static)"
                  : no_number(source, settings.density, "data.reference.rho");
        return std::nullopt;
    }
    const auto dynamic_pressure = pressure_kind == "cp" ? 1.0 : 0.5 * *density * speed_squared;
    const auto ambient = ambient_pressure(settings, source, pressure_kind);
    if (!ambient) {
        why = fmt::format("case {} has no number in the column '{}' of its table (data.reference.p_inf)", source.id,
                          settings.ambient);
        return std::nullopt;
    }
    FlowReference flow{*drag, *lift, 1 / (dynamic_pressure * area), *ambient};
    flow.length = number_of_case(settings.length, source);
    if (flow.length && !(*flow.length > 0)) flow.length.reset();
    if (!settings.length.empty() && !flow.length)
        flow.why_no_moments = no_number(source, settings.length, "data.forces.length");
    for (std::size_t c = 0; flow.length && c < settings.center.size(); ++c) {
        const auto place = number_of_case(settings.center[c], source);
        if (place) {
            flow.center[c] = *place;
            continue;
        }
        flow.why_no_moments = fmt::format("case {} has no number in the column '{}' of its table (data.forces.center)",
                                          source.id, settings.center[c]);
        flow.length.reset();
    }
    return flow;
}

std::optional<double> ambient_pressure(const ForceSettings& settings, const CaseSource& source,
                                       const std::string& pressure_kind)
{
    if (pressure_kind == "cp") return 0.0;
    if (!settings.ambient.empty()) return number_of_case(settings.ambient, source);
    // A solver's kinematic pressures refer to its own zero, whatever p_inf in Pa a table has.
    return pressure_kind == "static" ? table_value(source, "p_inf").value_or(0.0) : 0.0;
}

std::optional<double> table_value(const CaseSource& source, const std::string& column)
{
    const auto found = source.columns.find(column);
    return found == source.columns.end() ? std::nullopt : number_in(found->second);
}

std::optional<double> number_of_case(const std::string& text, const CaseSource& source)
{
    const auto fixed = number_in(text);
    return fixed ? fixed : table_value(source, text);
}

std::optional<double> table_mean(std::span<const CaseSource> cases, const std::string& column)
{
    double sum = 0;
    for (const auto& source : cases) {
        const auto value = table_value(source, column);
        if (!value) return std::nullopt;
        sum += *value;
    }
    return cases.empty() ? std::nullopt : std::optional(sum / static_cast<double>(cases.size()));
}

}  // namespace meshard
