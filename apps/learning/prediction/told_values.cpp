// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/prediction/told_values.h"

#include "apps/console/console.h"
#include "apps/console/text_table.h"
#include "apps/learning/cases/case_tensors.h"
#include "apps/learning/cases/field_scaling.h"
#include "partition/error.h"
#include "partition/lists.h"
#include "partition/mesh/vector_algebra.h"

#include <c10/util/StringUtil.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace meshard {
namespace {

/// Makes the case as its table would say it.
CaseSource source_of(const std::string& name, const std::map<std::string, double>& values)
{
    CaseSource source{name, {}, {}};
    for (const auto& [column, value] : values) source.columns[column] = fmt::format("{:.17g}", value);
    for (const auto* column : kMomentCenter) source.columns.try_emplace(column, "0");
    return source;
}

/// Numbers by what they are, in words for a user.
using Reference = std::map<std::string, std::vector<double>>;

/// Collects what gives the fields of a model, and with forces the coefficients, their meaning in a case, as far as it
/// is known: what fields of such kinds are measured by, whether the model learnt them so or not, the way of the free
/// stream, and what forces are divided by.
Reference reference_of(const SaidCase& said, bool with_forces)
{
    Reference reference;
    const auto numbers = [&](std::span<const std::string> texts) {
        std::vector<double> found;
        for (const auto& text : texts)
            if (const auto number = number_of_case(text, said.source)) found.push_back(*number);
        return found.size() == texts.size() ? found : std::vector<double>();
    };
    const auto put = [&](const std::string& name, std::vector<double> found) {
        if (!found.empty()) reference[name] = std::move(found);
    };
    const auto put_direction = [&](const std::string& name, std::span<const double> along) {
        Vector3 vector{};
        std::ranges::copy(along, vector.begin());
        vector = unit(vector);
        if (norm(vector) > 0) put(name, {vector.begin(), vector.end()});
    };
    auto data = said.data;
    data.nondimensional = true;
    for (const auto& quantity : reference_quantities(data)) {
        const auto columns = data.reference_columns.find(quantity);
        const auto texts = columns == data.reference_columns.end() ? std::vector{quantity} : columns->second;
        if (data.reference.contains(quantity))
            put(quantity, {data.reference.at(quantity)});
        else if (!numbers(texts).empty())
            put(quantity, {quantity_of(quantity, texts,
                                       [&](const auto& column) { return *number_of_case(column, said.source); })});
    }
    const auto& forces = said.forces;
    put_direction("the direction of U_inf", numbers(forces.velocity));
    if (!with_forces) return reference;
    put_direction("data.forces.up", forces.up);
    put("data.forces.area", numbers(std::span(&forces.area, 1)));
    const auto length = numbers(std::span(&forces.length, 1));
    put("data.forces.length", length);
    if (!length.empty()) put("data.forces.center", numbers(forces.center));
    return reference;
}

/// Whether numbers are the same but for rounding.
bool are_same(const std::vector<double>& some, const std::vector<double>& others)
{
    double largest = 0, difference = 0;
    for (std::size_t i = 0; i < some.size(); ++i) {
        largest = std::max({largest, std::abs(some[i]), std::abs(others[i])});
        difference = std::max(difference, std::abs(some[i] - others[i]));
    }
    return difference <= 1e-6 * largest;
}

std::string numbers_text(const std::vector<double>& numbers)
{
    return numbers.size() == 1 ? fmt::format("{:g}", numbers.front()) : fmt::format("({:g})", fmt::join(numbers, ", "));
}

}  // namespace

bool is_column(const std::string& length)
{
    return length != "bounds" && length != "none" && length.find_first_not_of("0123456789.+-eE, ") != std::string::npos;
}

ForceSettings force_settings_of(const Predictor& model, const std::map<std::string, double>& values)
{
    auto forces = model.forces();
    if (forces.area.empty()) forces.area = kReferenceArea;
    if (forces.length.empty()) forces.length = kMomentLength;
    if (forces.center.empty()) forces.center.assign(kMomentCenter.begin(), kMomentCenter.end());
    // A file of weights has no settings of forces, but it has these.
    const auto& data = model.data();
    for (auto [name, text] : {std::pair("rho", &forces.density), std::pair("p_inf", &forces.ambient)}) {
        if (const auto columns = data.reference_columns.find(name); columns != data.reference_columns.end())
            *text = columns->second.front();
        else if (const auto number = data.reference.find(name); number != data.reference.end())
            *text = exact_text(number->second);
    }
    const auto put = [&](const std::string& name, std::string& text) {
        if (const auto said = values.find(name); said != values.end() && number_in(text))
            text = exact_text(said->second);
    };
    put("rho", forces.density);
    put("p_inf", forces.ambient);
    put(kReferenceArea, forces.area);
    put(kMomentLength, forces.length);
    for (std::size_t c = 0; c < forces.center.size(); ++c) put(kMomentCenter[c], forces.center[c]);
    const bool is_number =
        std::ranges::all_of(forces.velocity, [](const auto& entry) { return number_in(entry).has_value(); });
    if (const auto speed = values.find("U_inf"); speed != values.end() && is_number) {
        const auto own = quantity_of("U_inf", forces.velocity, {});
        for (auto& component : forces.velocity)
            component = exact_text(own > 0 ? *number_in(component) / own * speed->second : 0);
    }
    return forces;
}

std::set<std::string> required_names(const DataConfig& data)
{
    std::set<std::string> names(data.constants.begin(), data.constants.end());
    if (!data.time.empty()) names.insert(data.time);
    for (const auto& quantity : reference_quantities(data)) {
        if (const auto columns = data.reference_columns.find(quantity); columns != data.reference_columns.end())
            std::ranges::copy_if(columns->second, std::inserter(names, names.end()),
                                 [](const auto& entry) { return !number_in(entry); });
        else if (!data.reference.contains(quantity))
            names.insert(quantity);
    }
    return names;
}

std::vector<std::string> missing_for_forces(const Predictor& model, const std::map<std::string, double>& values)
{
    const auto forces = force_settings_of(model, values);
    const auto source = source_of("", values);
    std::vector<std::string> missing;
    const auto look = [&](const std::string& text, bool is_positive) {
        const auto number = number_of_case(text, source);
        if ((!number || (is_positive && !(*number > 0))) && !contains(missing, text)) missing.push_back(text);
    };
    look(forces.area, true);
    for (const auto& component : forces.velocity) look(component, false);
    if (JudgedFields(model.data().fields, model.channels()).pressure_kind == "static") look(forces.density, true);
    return missing;
}

SaidCase said_case(const Predictor& model, const PredictionOptions& options, const std::string& name, bool warns)
{
    SaidCase said{model.data(), source_of(name, options.values), force_settings_of(model, options.values)};
    said.source.wall = options.wall;
    said.source.other_part = options.other_part;
    auto& data = said.data;
    const auto quantities = reference_quantities(data);
    std::vector<std::string> missing, remedies;
    for (const auto& required : required_names(data)) {
        if (options.values.contains(required)) continue;
        missing.push_back(!contains(quantities, required)
                              ? fmt::format("the model is told '{}' of a case", required)
                              : fmt::format("the model's fields are measured by {}", required));
        remedies.push_back("--set " + required + "=...");
    }
    if (!missing.empty())
        throw UsageError("{}. Give {} with {}.", fmt::join(missing, ", and "), missing.size() == 1 ? "it" : "them",
                         fmt::join(remedies, " "));
    const auto asked = requested_names({&model, 1}, options.with_forces);
    for (const auto& [quantity, value] : options.values) {
        const auto number = data.reference.find(quantity);
        auto before = value;
        if (number != data.reference.end())
            before = std::exchange(number->second, value);
        else if (quantity == kReferenceArea)
            before = number_in(model.forces().area).value_or(value);
        if (warns && before != value && asked.contains(quantity))
            warn("predict",
                 fmt::format("{}: {} is {:g}, in place of {:g} in the run's settings.", name, quantity, value, before));
    }
    auto& length = data.frame.length;
    if (const auto given = options.values.find(length); given != options.values.end()) {
        if (!(given->second > 0)) throw UsageError("--set {} must be above 0.", length);
    } else if (is_column(length)) {
        if (warns)
            warn("predict",
                 "{0}: no value for '{1}'; the longest edge of the bounding box is taken. Give "
                 "it with --set {1}=...",
                 name, length);
        length = "bounds";
    }
    return said;
}

std::vector<SaidCase> said_cases(std::span<const Predictor> models, const PredictionOptions& options,
                                 const std::string& name, bool warns)
{
    std::vector<SaidCase> cases;
    std::map<std::string, std::pair<std::vector<double>, const Predictor*>> known;
    for (const auto& model : models) {
        cases.push_back(said_case(model, options, name, warns && cases.empty()));
        for (const auto& [what, numbers] : reference_of(cases.back(), options.with_forces)) {
            const auto& [others, other] = known.try_emplace(what, numbers, &model).first->second;
            if (are_same(numbers, others)) continue;
            throw InvalidInput(
                "{}: {} is {} by {}, and {} by {}. Several runs predict together only if the flow and what it is "
                "measured by are the same: predict with each alone.",
                name, what, numbers_text(others), other->checkpoint().string(), numbers_text(numbers),
                model.checkpoint().string());
        }
    }
    return cases;
}

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
        if (told.trained && told.trained->first > told.trained->second) told.trained.reset();  // none learnt by all
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
        throw UsageError("--wall {}: the model is told no distance to a surface. Leave it out.", walls.front());
    if (told != models.end() && walls.empty() && told->data().wall_patches.empty())
        throw UsageError("the model {}. Give it with --wall FILE.",
                         told->needs_body() ? "encodes the surface of the body" : "is told the distance to a surface");
    if (!other_parts.empty() && std::ranges::none_of(models, [](const auto& model) { return model.other_part(); }))
        throw UsageError("--other-part {}: the model is told nothing of the case's other part. Leave it out.",
                         other_parts.front());
    // A value that no model asks for has a mistyped name. Those for forces alone may be told where none are computed.
    const auto names = requested_names(models, true);
    for (const auto& [name, value] : options.values) {
        if (names.contains(name)) continue;
        throw UsageError("--set {}: the model asks for no such value{}", name,
                         names.empty() ? "." : fmt::format("; it asks for {}.", c10::Join(", ", names)));
    }
}

}  // namespace meshard
