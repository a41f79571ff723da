// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/settings/model_rules.h"

#include "models/registry/registry.h"

#include <algorithm>
#include <cctype>
#include <string>

namespace meshard {
namespace {

SettingType type_of(const nlohmann::json& pattern, const OptionBounds& bounds)
{
    if (pattern.is_number_float()) return SettingType::Number;
    if (pattern.is_number()) return SettingType::Integer;
    if (pattern.is_boolean()) return SettingType::Boolean;
    // Null stands for a list that is empty by default; one number is a list of one.
    if (pattern.is_null()) return bounds.words.empty() ? SettingType::NumberList : SettingType::Text;
    if (!pattern.is_array()) return SettingType::Text;
    return !pattern.empty() && pattern[0].is_string() ? SettingType::TextList : SettingType::NumberList;
}

/// Writes a default as YAML: words without the quotes of JSON.
std::string yaml_text(const nlohmann::json& value)
{
    if (value.is_null()) return {};
    const auto is_plain = [](unsigned char c) { return std::isalnum(c) || c == '_'; };
    if (!value.is_string()) return value.dump();
    const auto& text = value.get_ref<const std::string&>();
    return !text.empty() && std::ranges::all_of(text, is_plain) ? text : value.dump();
}

SettingRule option_rule(const OptionInfo& option, const nlohmann::json& pattern)
{
    const auto condition = option.only_with.empty() ? "" : "; with " + option.only_with;
    SettingRule rule{.path = "model." + option.name,
                     .type = type_of(pattern, option.bounds),
                     .fallback = yaml_text(pattern),
                     .meaning = option.meaning + condition};
    const bool is_of_switch = !option.only_with.empty() && option.only_with.find('=') == std::string::npos;
    if (!option.only_with.empty()) rule.only_with = {"model." + option.only_with + (is_of_switch ? "=true" : "")};
    if (!is_of_switch) rule.bounds = option.bounds;
    rule.bounds.words = option.bounds.words;  // the model checks a switch's other bounds where they matter
    if (pattern.is_number_integer()) {
        rule.bounds.least = std::max(rule.bounds.least, 0.0);
        rule.bounds.most = std::min(rule.bounds.most, kLargeCount);
    }
    return rule;
}

/// Makes the rule of an argument that follows from the data; a configuration may state it, too.
SettingRule width_rule(const std::string& name, const nlohmann::json& width, const std::string& meaning)
{
    SettingRule rule{.path = "model." + name,
                     .type = SettingType::Boolean,
                     .meaning = meaning + (meaning.empty() ? "" : "; ") +
                                "follows from the data, and is checked where it is given"};
    if (width.is_boolean()) return rule;
    rule.type = width.is_array() ? SettingType::NumberList : SettingType::Integer;
    rule.bounds = {.least = 1, .most = kLargeCount};
    return rule;
}

std::vector<SettingRule> rules_of(const ModelEntry& entry)
{
    std::vector<SettingRule> rules;
    const auto* of_grids = entry.of_grids();
    auto widths = of_grids ? of_grids->widths({.in_channels = 1, .out_channels = 1, .extents = {1, 1}})
                           : entry.arguments_for({.embedding_dim = 6, .num_constants = 0, .out_dim = 1});
    const auto pattern_of = [&](const std::string& option) {
        const auto& pattern = entry.default_of(option);
        return of_grids && std::ranges::count(of_grids->per_direction, option) > 0 ? nlohmann::json(pattern.at(0))
                                                                                   : pattern;
    };
    for (const auto& option : entry.options) {
        if (!widths.contains(option.name)) {
            rules.push_back(option_rule(option, pattern_of(option.name)));
            if (pattern_of(option.name) != entry.default_of(option.name)) rules.back().type = SettingType::NumberList;
            // `model_arguments` computes these defaults from the data's frame.
            if (option.name == "aabb_min" || option.name == "aabb_max") rules.back().fallback = {};
            continue;
        }
        rules.push_back(width_rule(option.name, widths[option.name], option.meaning));
        widths.erase(option.name);
    }
    for (const auto& [name, width] : widths.items()) rules.push_back(width_rule(name, width, ""));
    return rules;
}

/// Adds a rule, or adds the model's name to the same key's rule of other models, which then allows what any of them
/// allows.
void add_shared(std::vector<SettingRule>& rules, SettingRule rule, const std::string& model)
{
    const auto known = std::ranges::find_if(rules, [&](const auto& other) { return other.path == rule.path; });
    if (known == rules.end()) {
        rule.of = model;
        rules.push_back(rule);
        return;
    }
    auto& bounds = known->bounds;
    known->of += ", " + model;
    if (bounds.words != rule.bounds.words || known->type != rule.type)
        known->meaning += "; " + model + ": " + rule.meaning;
    if (bounds.words != rule.bounds.words) bounds.words.clear();
    bounds.above = bounds.above && rule.bounds.above;
    bounds.least = std::min(bounds.least, rule.bounds.least);
    bounds.most = std::max(bounds.most, rule.bounds.most);
    // A whole number is a number, and a single number a list of one.
    if (rule.type == SettingType::NumberList ||
        (rule.type == SettingType::Number && known->type == SettingType::Integer))
        known->type = rule.type;
    if (known->fallback != rule.fallback) known->fallback = {};
}

}  // namespace

std::vector<SettingRule> model_rules(std::string_view model)
{
    std::vector<SettingRule> rules{{.path = "model.name", .fallback = "transolver", .meaning = "architecture"}};
    for (const auto& entry : registered_models()) {
        if (entry.of_grids() && entry.of_grids()->is_denoiser) continue;
        rules.front().bounds.words.push_back(entry.name);
        if (!model.empty() && model != entry.name) continue;
        for (const auto& rule : rules_of(entry)) add_shared(rules, rule, entry.name);
    }
    return rules;
}

}  // namespace meshard
