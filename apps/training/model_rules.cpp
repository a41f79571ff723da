// SPDX-License-Identifier: Apache-2.0
#include "apps/training/model_rules.h"

#include <algorithm>
#include <deque>
#include <string>

#include "models/registry/registry.h"

namespace meshard {
namespace {

constexpr double kLargeCount = 1e9;

/// Keeps texts for rules, which only point to them, as long as the program runs.
std::string_view kept(std::string text)
{
    static std::deque<std::string> texts;
    for (const auto& known : texts) {
        if (known == text) return known;
    }
    return texts.emplace_back(std::move(text));
}

SettingType type_of(const nlohmann::json& pattern)
{
    if (pattern.is_number_float()) return SettingType::Number;
    if (pattern.is_number()) return SettingType::Integer;
    if (pattern.is_boolean()) return SettingType::Boolean;
    if (!pattern.is_array()) return SettingType::Text;
    return !pattern.empty() && pattern[0].is_string() ? SettingType::TextList : SettingType::NumberList;
}

SettingRule option_rule(const std::string& name, const nlohmann::json& pattern, const std::string& meaning)
{
    SettingRule rule{.path = kept("model." + name), .type = type_of(pattern), .meaning = kept(meaning)};
    if (pattern.is_number_integer()) {
        rule.min = 0;
        rule.max = kLargeCount;
    }
    return rule;
}

/// What follows from the data may be stated, too.
SettingRule width_rule(const std::string& name, const nlohmann::json& width)
{
    SettingRule rule{.path = kept("model." + name), .type = SettingType::Boolean, .meaning = "follows from the data; may be stated, and is checked then"};
    if (width.is_boolean()) return rule;
    rule.type = SettingType::Integer;
    rule.min = 1;
    rule.max = kLargeCount;
    return rule;
}

/// Adds a rule, or the model's name to the one that another model has for the key.
void add_shared(std::vector<SettingRule>& rules, SettingRule rule, const std::string& model)
{
    const auto known = std::find_if(rules.begin(), rules.end(), [&](const auto& other) { return other.path == rule.path; });
    if (known == rules.end()) {
        rule.meaning = kept(std::string(rule.meaning) + " [" + model + "]");
        rules.push_back(rule);
        return;
    }
    auto text = std::string(known->meaning);
    text.insert(text.size() - 1, ", " + model);
    known->meaning = kept(text);
}

}  // namespace

std::vector<SettingRule> model_rules(std::string_view model)
{
    std::string names;
    for (const auto& entry : registered_models()) names += (names.empty() ? "" : "|") + entry.name;
    std::vector<SettingRule> rules{{.path = "model.name", .fallback = "transolver", .words = kept(names), .meaning = "architecture"}};
    for (const auto& entry : registered_models()) {
        if (!model.empty() && find_model(model).name != entry.name) continue;
        std::vector<SettingRule> own;
        for (const auto& [name, meaning] : entry.options) {
            own.push_back(option_rule(name, entry.defaults.at(name), meaning));
            if (!model.empty()) own.back().fallback = kept(entry.defaults.at(name).dump());
        }
        const auto widths = entry.widths({.embedding_dim = 6, .num_constants = 0, .out_dim = 1});
        for (const auto& item : widths.items()) own.push_back(width_rule(item.key(), item.value()));
        for (const auto& rule : own) {
            if (model.empty()) add_shared(rules, rule, entry.name);
            else rules.push_back(rule);
        }
    }
    return rules;
}

}  // namespace meshard
