// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/settings/setting_table.h"

#include <algorithm>
#include <charconv>

namespace meshard {
namespace {

/// Writes a number as its shortest text, such as 0.5 and 1e-4.
std::string yaml_number(double value)
{
    const auto written = [&](std::chars_format format) {
        char text[400];
        return std::string(text, std::to_chars(text, std::end(text), value, format).ptr);
    };
    auto fixed = written(std::chars_format::fixed), scientific = written(std::chars_format::scientific);
    if (const auto exponent = scientific.find("e-0"); exponent != std::string::npos) scientific.erase(exponent + 2, 1);
    return scientific.size() < fixed.size() ? scientific : fixed;
}

/// Joins values as a YAML list; a list of one is written as its value.
std::string list_text(const std::vector<std::string>& values)
{
    std::string text;
    for (const auto& value : values) text += (text.empty() ? "" : ", ") + value;
    return values.size() > 1 ? "[" + text + "]" : text;
}

}  // namespace

namespace detail {

SettingRule rule_like(const std::string& value)
{
    return {.fallback = value};
}

SettingRule rule_like(const std::filesystem::path& value)
{
    return {.fallback = value.string()};
}

SettingRule rule_like(bool value)
{
    return {.type = SettingType::Boolean, .fallback = value ? "true" : "false"};
}

SettingRule rule_like(std::int64_t value)
{
    return {.type = SettingType::Integer, .fallback = std::to_string(value)};
}

SettingRule rule_like(double value)
{
    return {.type = SettingType::Number, .fallback = yaml_number(value)};
}

SettingRule rule_like(const std::vector<std::string>& values)
{
    return {.type = SettingType::TextList, .fallback = list_text(values)};
}

SettingRule rule_like(const std::vector<double>& values)
{
    std::vector<std::string> texts;
    for (const auto value : values) texts.push_back(yaml_number(value));
    return {.type = SettingType::NumberList, .fallback = list_text(texts)};
}

SettingRule rule_like(const std::vector<std::int64_t>& values)
{
    auto rule = rule_like(std::vector<double>(values.begin(), values.end()));
    rule.type = SettingType::IntegerList;
    return rule;
}

void store(const Setting& setting, std::string& value)
{
    value = setting.values.at(0);
}

void store(const Setting& setting, std::filesystem::path& value)
{
    value = setting.values.at(0);
}

void store(const Setting& setting, bool& value)
{
    value = setting.values.at(0) == "true";
}

void store(const Setting& setting, std::int64_t& value)
{
    value = static_cast<std::int64_t>(number_in(setting.values.at(0)).value_or(static_cast<double>(value)));
}

void store(const Setting& setting, double& value)
{
    value = number_in(setting.values.at(0)).value_or(value);
}

void store(const Setting& setting, std::vector<std::string>& values)
{
    values = setting.values;
}

void store(const Setting& setting, std::vector<double>& values)
{
    values.clear();
    for (const auto& value : setting.values) values.push_back(number_in(value).value());
}

void store(const Setting& setting, std::vector<std::int64_t>& values)
{
    if (!number_in(setting.values.at(0))) return;
    values.clear();
    for (const auto& value : setting.values) values.push_back(static_cast<std::int64_t>(number_in(value).value()));
}

}  // namespace detail

SettingRule& SettingTable::add(SettingRule rule, Store store)
{
    stores_.push_back(std::move(store));
    return rules_.emplace_back(std::move(rule));
}

SettingRule& SettingTable::add(SettingRule rule, std::string path, OptionBounds bounds, std::string meaning,
                               Store store)
{
    if (rule.type == SettingType::Integer || rule.type == SettingType::IntegerList) {
        bounds.least = std::max(bounds.least, 0.0);
        bounds.most = std::min(bounds.most, kLargeCount);
    }
    const bool is_text = rule.type == SettingType::Text || rule.type == SettingType::TextList;
    if (!is_text && !bounds.words.empty()) rule.fallback = bounds.words.front();
    if (path.find('*') != std::string::npos) rule.fallback.clear();
    rule.path = std::move(path);
    rule.bounds = std::move(bounds);
    rule.meaning = std::move(meaning);
    return add(std::move(rule), std::move(store));
}

void SettingTable::store(const Settings& settings) const
{
    for (const auto& setting : settings.all()) store(setting);
}

void SettingTable::store(const Setting& setting) const
{
    if (const auto* rule = rule_of(rules_, setting.path)) stores_[rule - rules_.data()](setting);
}

}  // namespace meshard
