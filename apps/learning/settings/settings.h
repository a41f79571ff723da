// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/layers/option_checks.h"
#include "sharding/messages/agreement.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshard {

enum class SettingType : std::uint8_t {
    Text,
    Integer,
    Number,
    Boolean,
    TextList,
    NumberList,
    IntegerList,  ///< or one whole number
    NumberOrTextList
};

inline constexpr double kLargeCount = 1e9;  ///< upper bound of counts that have no other bound

/// One key of a configuration: its name, the values that it allows, and its default.
struct SettingRule {
    std::string path = {};  ///< dotted; `*` stands for any name
    SettingType type = SettingType::Text;
    std::string fallback = {};              ///< as YAML; empty: absent, `???`: must be set
    OptionBounds bounds = {};               ///< the words are all values of a Text, or alternatives to a number
    std::string meaning = {};               ///< a line for people, without a full stop
    std::vector<std::string> not_yet = {};  ///< words that are known elsewhere and refused here as not implemented
    std::size_t length = 0;                 ///< number of values of a list; 0: any
    std::string of = {};                    ///< the models that have the key; empty: every run has it
    /// The key has an effect if one of these holds: `key=word|word` of another key that has one of these values, or
    /// `key` of one that has not its default. Empty: always.
    std::vector<std::string> only_with = {};
};

/// A value and its source: `car.yaml:3:5`, `command line` or `default`.
struct Setting {
    std::string path;
    std::vector<std::string> values;  ///< one, or the entries of a list
    bool is_list = false;
    std::string source;
    SettingType type = SettingType::Text;  ///< type of its rule
};

/// A configuration: the values of a YAML file, except keys (with all below them) that `~key` words of the command line
/// remove, then `key=value` words, then defaults. All are checked against a table of rules.
class Settings {
public:
    /// Reads a configuration. Values may hold `${env:NAME}` and `${other.key}`.
    /// @throws UsageError for a key that no rule names (with the nearest that one does), a value of the wrong type,
    ///         out of range or not implemented, and a `???` that was left; with file, line and column where known.
    /// @throws IoError if the file cannot be read.
    static Settings read(const std::filesystem::path& file, std::span<const std::string> overrides,
                         std::span<const SettingRule> rules);

    bool has(std::string_view path) const { return find(path) != nullptr; }
    const Setting* find(std::string_view path) const;

    std::string text(std::string_view path) const;

    /// Names that stand in place of `*` in `prefix.*`, in the order of the file.
    std::vector<std::string> names_below(std::string_view prefix) const;

    /// Writes every key that has a value as YAML; on request with each source in a comment.
    std::string to_yaml(bool with_sources) const;

    /// Returns the keys and values on which all ranks of a run must agree: all but `data.shards`, which may lie on each
    /// host's own disk. Equal numbers have the same text, however they are written.
    Facts facts() const;

    const std::vector<Setting>& all() const { return settings_; }

    /// Returns a setting's source and path, with which a message begins: `car.yaml:3:5: training.loss`.
    std::string where(std::string_view path) const;

    /// @throws UsageError that begins with the setting's source and path, and ends with `why`
    [[noreturn]] void refuse(std::string_view path, const std::string& why) const;

private:
    void add(Setting setting);
    void resolve_references();

    std::vector<Setting> settings_;  // in the order of the file, defaults last
};

/// Returns the rule for a dotted path, or null.
const SettingRule* rule_of(std::span<const SettingRule> rules, const std::string& path);

/// Returns the number that a text is; nothing for any other text, and for numbers that are not finite.
std::optional<double> number_in(const std::string& text);

/// Describes the values that a key allows, e.g. `a whole number from 1, or auto`.
std::string value_text(const SettingRule& rule);

/// Writes the table as text for a person: key, default, meaning.
std::string describe(std::span<const SettingRule> rules);

/// Whether a setting has its default value; files of settings that a run wrote also state defaults.
bool is_default(const Setting& setting, const std::vector<SettingRule>& rules);

/// Lists the keys that are not at their defaults and have no effect beside the others, each with what it needs
/// (`SettingRule::only_with`), e.g. `training.huber_delta (only with training.loss=huber)`.
std::vector<std::string> keys_without_effect(const Settings& settings, const std::vector<SettingRule>& rules);

}  // namespace meshard
