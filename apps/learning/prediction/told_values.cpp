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
        names.insert(data.constants.begin(), data.constants.end());
        if (!data.time.empty()) names.insert(data.time);
        if (is_column(data.frame.length)) names.insert(data.frame.length);
        for (const auto& name : reference_quantities(data)) {
            names.insert(name);
            const auto columns = data.reference_columns.find(name);
            if (columns == data.reference_columns.end()) continue;
            std::ranges::copy_if(columns->second, std::inserter(names, names.end()),
                                 [](const auto& entry) { return !number_in(entry); });
        }
    }
    if (with_forces) {
        const auto forces = force_settings_of(models.front());
        if (is_column(forces.area)) names.insert(forces.area);
        auto said = forces.velocity;
        said.push_back(forces.length);
        said.insert(said.end(), forces.center.begin(), forces.center.end());
        const auto& fields = models.front().data().fields;
        if (std::ranges::any_of(fields, [](const auto& field) { return field.kind == "static"; }))
            said.push_back(forces.density);
        std::ranges::copy_if(said, std::inserter(names, names.end()),
                             [](const auto& entry) { return !number_in(entry); });
    }
    return names;
}

std::vector<ToldValue> told_values(std::span<const Predictor> models)
{
    std::vector<ToldValue> all;
    const auto of_fields = requested_names(models, false);
    for (const auto& name : requested_names(models, true)) {
        // A model can do without a length, and without a quantity for which there is a number or a column.
        const bool is_required = of_fields.contains(name) && std::ranges::any_of(models, [&](const auto& model) {
                                     const auto& data = model.data();
                                     return name != data.frame.length && !data.reference.contains(name) &&
                                            !data.reference_columns.contains(name);
                                 });
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
    // A value that no model asks for has a mistyped name.
    const auto names = requested_names(models, options.with_forces);
    for (const auto& [name, value] : options.values) {
        if (names.contains(name)) continue;
        throw UsageError(fmt::format("--set {}: the model asks for no such value{}", name,
                                     names.empty() ? "." : fmt::format("; it asks for {}.", c10::Join(", ", names))));
    }
}

}  // namespace meshard
