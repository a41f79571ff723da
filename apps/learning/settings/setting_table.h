// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/settings/settings.h"

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace meshard {
namespace detail {

/// Makes a rule with the type and the default of a key's variable.
SettingRule rule_like(const std::string& value);
SettingRule rule_like(const std::filesystem::path& value);
SettingRule rule_like(bool value);
SettingRule rule_like(std::int64_t value);
SettingRule rule_like(double value);
SettingRule rule_like(const std::vector<std::string>& values);
SettingRule rule_like(const std::vector<double>& values);
SettingRule rule_like(const std::vector<std::int64_t>& values);
template <std::size_t N>
SettingRule rule_like(const std::array<double, N>& values)
{
    auto rule = rule_like(std::vector<double>(values.begin(), values.end()));
    rule.length = N;
    return rule;
}
template <class Value>
SettingRule rule_like(const std::optional<Value>& value)
{
    auto rule = rule_like(value.value_or(Value{}));
    if (!value) rule.fallback.clear();
    return rule;
}
template <class Value>
SettingRule rule_like(const std::map<std::string, Value>& /*values*/)
{
    return rule_like(Value{});
}

/// Stores a setting that fits the rule. A word in place of a number leaves the variable unchanged.
void store(const Setting& setting, std::string& value);
void store(const Setting& setting, std::filesystem::path& value);
void store(const Setting& setting, bool& value);
void store(const Setting& setting, std::int64_t& value);
void store(const Setting& setting, double& value);
void store(const Setting& setting, std::vector<std::string>& values);
void store(const Setting& setting, std::vector<double>& values);
void store(const Setting& setting, std::vector<std::int64_t>& values);
template <std::size_t N>
void store(const Setting& setting, std::array<double, N>& values)
{
    for (std::size_t i = 0; i < N; ++i) values[i] = number_in(setting.values.at(i)).value();
}
template <class Value>
void store(const Setting& setting, std::optional<Value>& value)
{
    if (number_in(setting.values.at(0))) store(setting, value.emplace());
}
template <class Value>
void store(const Setting& setting, std::map<std::string, Value>& values)
{
    store(setting, values[setting.path.substr(setting.path.rfind('.') + 1)]);
}

}  // namespace detail

/// The keys of a configuration, each bound to the variable that it sets and that gives its type and default. The
/// variables must outlive the table.
class SettingTable {
public:
    using Store = std::function<void(const Setting&)>;

    SettingRule& add(SettingRule rule, Store store);

    /// Binds a key to a string, path, number, bool, list of strings or numbers, or array of numbers; a list of whole
    /// numbers may also be one number. An `optional`
    /// number or array is absent unless set, and in a `map`, whose key ends with `.*`, each name is an entry. Whole
    /// numbers lie from 0 to kLargeCount unless the bounds say less. A word among the bounds of numbers is their
    /// default, and stands for the variable's initial value.
    template <class Value>
    SettingRule& add(std::string path, Value& value, OptionBounds bounds, std::string meaning)
    {
        return add(detail::rule_like(value), std::move(path), std::move(bounds), std::move(meaning),
                   [&value](const Setting& setting) { detail::store(setting, value); });
    }

    /// Binds a key to a variable that has one of some named values. Of several names of the initial value, the first is
    /// the default.
    template <class Value>
    SettingRule& add_choice(std::string path, Value& value,
                            const std::vector<std::pair<std::string, std::type_identity_t<Value>>>& choices,
                            std::string meaning)
    {
        SettingRule rule;
        OptionBounds bounds;
        for (const auto& [name, choice] : choices) {
            if (choice == value && rule.fallback.empty()) rule.fallback = name;
            bounds.words.push_back(name);
        }
        return add(std::move(rule), std::move(path), std::move(bounds), std::move(meaning),
                   [&value, choices](const Setting& setting) {
                       for (const auto& [name, choice] : choices) {
                           if (setting.values.at(0) == name) value = choice;
                       }
                   });
    }

    /// Adds one `Element` for each name below a key, as its member `name`; its `add_keys(table, base)` adds its keys,
    /// at `base` and below it.
    template <class Element>
    void add_each(const std::string& path, std::vector<Element>& elements)
    {
        Element any;
        SettingTable keys;
        any.add_keys(keys, path + ".*");
        for (auto& rule : keys.rules_) {
            add(std::move(rule), [&elements, path](const Setting& setting) {
                const auto name =
                    setting.path.substr(path.size() + 1, setting.path.find('.', path.size() + 1) - path.size() - 1);
                auto element = std::ranges::find(elements, name, &Element::name);
                if (element == elements.end()) {
                    elements.emplace_back().name = name;
                    element = elements.end() - 1;
                }
                SettingTable own;
                element->add_keys(own, path + "." + name);
                own.store(setting);
            });
        }
    }

    const std::vector<SettingRule>& rules() const { return rules_; }

    /// Sets the variables to the values of a configuration.
    void store(const Settings& settings) const;

private:
    SettingRule& add(SettingRule rule, std::string path, OptionBounds bounds, std::string meaning, Store store);
    void store(const Setting& setting) const;

    std::vector<SettingRule> rules_;
    std::vector<Store> stores_;  // one for each of `rules_`
};

}  // namespace meshard
