// SPDX-License-Identifier: Apache-2.0
#include "models/registry/registry.h"

#include "models/registry/library_models.h"
#include "partition/error.h"
#include "partition/lists.h"
#include "partition/nearest_name.h"

#include <tuple>

namespace meshard {
namespace {

std::vector<ModelEntry>& entries()
{
    static std::vector<ModelEntry> entries = library_models();
    return entries;
}

/// Returns whether the types match; an integer is accepted for a floating number.
bool is_same_type(const nlohmann::json& value, const nlohmann::json& pattern)
{
    if (pattern.is_null()) return true;
    if (pattern.is_number_float()) return value.is_number();
    if (pattern.is_number()) return value.is_number_integer();
    return value.type() == pattern.type();
}

const char* type_name(const nlohmann::json& pattern)
{
    if (pattern.is_number_float()) return "a number";
    if (pattern.is_number()) return "a whole number";
    if (pattern.is_boolean()) return "true or false";
    return pattern.is_array() ? "a list" : "a text";
}

}  // namespace

ModelRegistration::ModelRegistration(ModelEntry entry)
{
    entries().push_back(std::move(entry));
}

nlohmann::json ModelEntry::arguments_for(const PointWidths& widths) const
{
    if (of_grids()) throw InvalidInput("{} is a model of grids; here a model of points is wanted.", class_name);
    return of_bodies() ? of_bodies()->widths(widths) : of_points()->widths(widths);
}

bool takes_time(const ModelEntry& entry)
{
    return entry.arguments_for({.embedding_dim = 3, .num_constants = 0, .out_dim = 1, .has_time = true}) !=
           entry.arguments_for({.embedding_dim = 3, .num_constants = 0, .out_dim = 1});
}

const std::vector<ModelEntry>& registered_models()
{
    return entries();
}

const ModelEntry& find_model(std::string_view name)
{
    const auto wanted = lower_case(name);
    std::vector<std::string> names;
    for (const auto& entry : entries()) {
        if (wanted == lower_case(entry.name) || wanted == lower_case(entry.class_name)) return entry;
        names.push_back(entry.name);
    }
    std::string message = "there is no model '" + std::string(name) + "'.";
    message += suggestion(wanted, names) + " There are:";
    for (const auto& known : names) message += " " + known;
    throw InvalidInput("{}.", message);
}

const ModelEntry& find_point_model(std::string_view name)
{
    const auto& entry = find_model(name);
    if (!entry.of_grids()) return entry;
    std::string message = entry.class_name + " is a model of grids; here a model of points is wanted:";
    for (const auto& known : entries()) {
        if (!known.of_grids()) message += " " + known.name;
    }
    throw InvalidInput("{}.", message);
}

nlohmann::json complete_arguments(const ModelEntry& entry, const nlohmann::json& arguments)
{
    auto complete = entry.defaults;
    const auto given = entry.spelled_out ? entry.spelled_out(arguments) : arguments;
    for (const auto& [name, value] : given.items()) {
        if (!complete.contains(name)) {
            std::vector<std::string> names;
            for (const auto& item : complete.items()) names.push_back(item.key());
            throw InvalidInput("{}: there is no argument '{}'.{}", entry.class_name, name, suggestion(name, names));
        }
        if (value.is_null()) {
            if (contains(entry.nullable, name)) complete[name] = value;
            continue;
        }
        // A list of one may be written as its only value.
        const auto whole = complete[name].is_array() && value.is_primitive() ? nlohmann::json::array({value}) : value;
        if (!is_same_type(whole, complete[name])) {
            throw InvalidInput("{}: {} cannot be {}; expected {}.", entry.class_name, name, value.dump(),
                               type_name(complete[name]));
        }
        complete[name] = whole;
    }
    if (entry.check) entry.check(complete);
    for (const auto& name : entry.extras) {
        if (complete[name] == entry.defaults[name]) complete.erase(name);
    }
    return complete;
}

void add_part(Model& model, const std::string& name, std::shared_ptr<torch::nn::Module> part, const std::string& whose)
{
    if (model.module->named_children().contains(name))
        throw InvalidInput("the model {} has a part '{}' of its own, which is the name of {}", model.class_name, name,
                           whose);
    model.module->register_module(name, std::move(part));
}

std::map<std::string, AxisLayout> share_parameters(const Model& model, std::int64_t num_ranks)
{
    const auto& share = find_model(model.class_name).share_parameters;
    return share ? share(*model.module, num_ranks) : std::map<std::string, AxisLayout>();
}

Model make_model(std::string_view name, const nlohmann::json& arguments)
{
    const auto& entry = find_model(name);
    Model model{entry.class_name, complete_arguments(entry, arguments), nullptr, {}, {}};
    if (const auto* of_grids = entry.of_grids()) {
        std::tie(model.module, model.forward_grid) = of_grids->make(model.arguments);
    } else if (const auto* of_bodies = entry.of_bodies()) {
        auto made = of_bodies->make(model.arguments);
        model.module = std::move(made.module);
        model.forward = std::move(made.forward);
        model.forward_parts = std::move(made.forward_parts);
    } else {
        std::tie(model.module, model.forward) = entry.of_points()->make(model.arguments);
    }
    return model;
}

}  // namespace meshard
