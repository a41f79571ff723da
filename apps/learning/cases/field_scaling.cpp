// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/cases/field_scaling.h"

#include "partition/error.h"
#include "partition/lists.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace meshard {
namespace {

std::string pressure_kind(const DataConfig& data)
{
    const auto is_pressure = [](const FieldConfig& field) {
        return field.kind == "kinematic" || field.kind == "static" || field.kind == "cp";
    };
    const auto found = std::ranges::find_if(data.fields, is_pressure);
    return found == data.fields.end() ? "kinematic" : found->kind;
}

}  // namespace

FieldMeasure measure_of(const DataConfig& data, std::string_view kind)
{
    if (!data.nondimensional) return {};
    const auto is_said = [&](const char* name) {
        return data.reference.contains(name) || data.reference_columns.contains(name);
    };
    // Kinematic pressures refer to the solver's own zero, so p_inf may be missing; pressures in Pa may be absolute, so
    // they need it.
    if (kind == "kinematic") return {.factor = 0.5, .powers = {{"U_inf", 2}}, .is_above_p_inf = is_said("p_inf")};
    if (kind == "static") return {.factor = 0.5, .powers = {{"rho", 1}, {"U_inf", 2}}, .is_above_p_inf = true};
    if (kind == "stress") {
        auto measure = measure_of(data, pressure_kind(data));
        measure.is_above_p_inf = false;
        return measure;
    }
    if (kind == "velocity") return {.powers = {{"U_inf", 1}}};
    if (kind == "temperature") return {.powers = {{"T_inf", 1}}};
    if (kind == "density") return {.powers = {{"rho", 1}}};
    if (kind == "viscosity") return {.powers = {{"U_inf", 1}, {"L", 1}}};
    return {};
}

FieldScaling FieldScaling::on(const at::Device& device) const
{
    return scale.defined() ? FieldScaling{shift.to(device), scale.to(device)} : *this;
}

std::vector<std::string> reference_quantities(const DataConfig& data)
{
    std::vector<std::string> names;
    const auto add = [&](const std::string& name) {
        if (!contains(names, name)) names.push_back(name);
    };
    if (!data.nondimensional) return names;
    for (const auto& field : data.fields) {
        const auto measure = measure_of(data, field.kind);
        for (const auto& [name, power] : measure.powers) add(name);
        if (measure.is_above_p_inf) add("p_inf");
    }
    return names;
}

FieldScaling field_scaling(const DataConfig& data, std::span<const std::int64_t> channels, const std::string& where,
                           const std::function<double(const std::string&)>& value_of)
{
    if (!data.nondimensional) return {};
    std::vector<float> shift, scale;
    for (std::size_t f = 0; f < data.fields.size(); ++f) {
        const auto measure = measure_of(data, data.fields[f].kind);
        auto by = measure.factor;
        for (const auto& [name, power] : measure.powers) {
            const auto value = value_of(name);
            if (!(value > 0) || !std::isfinite(value)) {
                throw InvalidInput("{}: {} is {}, and the field '{}' is divided by it "
                                   "(data.targets=nondimensional). It must be above 0.",
                                   where, name, value, data.fields[f].name);
            }
            for (int i = 0; i < power; ++i) by *= value;
        }
        const auto from = measure.is_above_p_inf ? value_of("p_inf") : 0.0;
        shift.insert(shift.end(), static_cast<std::size_t>(channels[f]), static_cast<float>(from));
        scale.insert(scale.end(), static_cast<std::size_t>(channels[f]), static_cast<float>(by));
    }
    return {torch::tensor(shift), torch::tensor(scale)};
}

FieldScaling field_scaling(const DataConfig& data, std::span<const std::int64_t> channels, const CaseSource& source)
{
    return field_scaling(data, channels, "case " + source.id, [&](const std::string& name) {
        if (const auto said = data.reference.find(name); said != data.reference.end()) return said->second;
        if (const auto columns = data.reference_columns.find(name); columns != data.reference_columns.end())
            return quantity_of(name, columns->second, [&](const std::string& column) { return source.number(column); });
        if (source.columns.contains(name)) return source.number(name);
        throw InvalidInput("case {0}: data.targets is nondimensional, and {1} is not said. Give it with "
                           "data.reference.{1}, or as the column {1} of data.cases{2}",
                           source.id, name,
                           name == "p_inf" ? "; of pressures relative to the surroundings it is 0." : ".");
    });
}

std::vector<std::pair<std::int64_t, std::int64_t>> shared_vectors(const DataConfig& data,
                                                                  std::span<const std::int64_t> channels)
{
    std::vector<std::pair<std::int64_t, std::int64_t>> vectors;
    std::int64_t first = 0;
    for (std::size_t f = 0; f < data.fields.size(); ++f) {
        if (data.shares_deviation && is_vector(data.fields[f]) && channels[f] > 1)
            vectors.emplace_back(first, channels[f]);
        first += channels[f];
    }
    return vectors;
}

}  // namespace meshard
