// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/prediction/told_values.h"

#include "apps/console/console.h"
#include "apps/learning/cases/field_scaling.h"

#include <c10/util/StringUtil.h>
#include <fmt/core.h>

#include <algorithm>
#include <iterator>

namespace meshard {

std::set<std::string> requested_names(std::span<const Predictor> models, bool with_forces)
{
    std::set<std::string> names;
    for (const auto& model : models) {
        const auto& data = model.data();
        names.merge(required_names(data));
        if (is_column(data.frame.length)) names.insert(data.frame.length);
        for (const auto& name : reference_quantities(data))
            if (data.reference.contains(name)) names.insert(name);
    }
    // Columns are told by their names, a number and what is not said by the name of the quantity.
    const auto ask = [&](const std::string& name, std::span<const std::string> entries) {
        const auto is_number = [](const auto& entry) { return number_in(entry).has_value(); };
        if (std::ranges::all_of(entries, is_number)) names.insert(name);
        std::ranges::remove_copy_if(entries, std::inserter(names, names.end()), is_number);
    };
    for (const auto& model : with_forces ? models : models.first(0)) {
        const auto forces = force_settings_of(model);
        ask("U_inf", forces.velocity);
        ask(kReferenceArea, {&forces.area, 1});
        ask(kMomentLength, {&forces.length, 1});
        for (std::size_t c = 0; c < forces.center.size(); ++c) ask(kMomentCenter[c], {&forces.center[c], 1});
        const auto kind = JudgedFields(model.data().fields, model.channels()).pressure_kind;
        if (kind == "static") ask("rho", {&forces.density, 1});
        if (kind == "static" && forces.ambient.empty()) names.insert("p_inf");
        if (kind != "cp" && !forces.ambient.empty()) ask("p_inf", {&forces.ambient, 1});
    }
    return names;
}

std::vector<ToldValue> told_values(std::span<const Predictor> models)
{
    std::vector<ToldValue> all;
    const auto of_fields = requested_names(models, false);
    for (const auto& name : requested_names(models, true)) {
        const bool is_required =
            std::ranges::any_of(models, [&](const auto& model) { return required_names(model.data()).contains(name); });
        ToldValue told{name, is_required, !of_fields.contains(name)};
        for (const auto& model : models) {
            const auto own = model.ranges().of_number(name, model.data());
            if (own)
                told.trained = told.trained ? std::pair{std::max(told.trained->first, own->first),
                                                        std::min(told.trained->second, own->second)}
                                            : *own;
        }
        all.push_back(std::move(told));
    }
    return all;
}

void require_asked_for(std::span<const Predictor> models, const PredictionOptions& options,
                       const std::vector<std::string>& walls, const std::vector<std::string>& other_parts)
{
    const auto told =
        std::ranges::find_if(models, [](const auto& model) { return model.data().needs_wall() || model.needs_body(); });
    // Of distances in an array (data.distances) a sensitivity wants to know from which surface they are.
    const bool is_measured = !options.sensitivities.empty() && std::ranges::any_of(models, [](const auto& model) {
        return !model.data().distances.empty();
    });
    if (told == models.end() && !is_measured && !walls.empty())
        throw UsageError(
            fmt::format("--wall {}: the model is told no distance to a surface. Leave it out.", walls.front()));
    if (told != models.end() && walls.empty() && told->data().wall_patches.empty())
        throw UsageError(
            fmt::format("the model {}. Give it with --wall FILE.",
                        told->needs_body() ? "encodes the surface of the body" : "is told the distance to a surface"));
    if (!other_parts.empty() && std::ranges::none_of(models, [](const auto& model) { return model.other_part(); }))
        throw UsageError(fmt::format(
            "--other-part {}: the model is told nothing of the case's other part. Leave it out.", other_parts.front()));
    // A value that no model asks for has a mistyped name. Those for forces alone may be told where none are computed.
    const auto names = requested_names(models, true);
    for (const auto& [name, value] : options.values) {
        if (names.contains(name)) continue;
        throw UsageError(fmt::format("--set {}: the model asks for no such value{}", name,
                                     names.empty() ? "." : fmt::format("; it asks for {}.", c10::Join(", ", names))));
    }
}

}  // namespace meshard
