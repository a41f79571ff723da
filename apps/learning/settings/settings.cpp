// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/settings/settings.h"

#include "apps/console/console.h"
#include "partition/lists.h"
#include "partition/nearest_name.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>

namespace meshard {
namespace {

constexpr std::string_view kMustBeSet = "???";

std::vector<std::string> split(std::string_view text, char separator)
{
    std::vector<std::string> parts;
    std::string part;
    std::istringstream stream{std::string(text)};
    while (std::getline(stream, part, separator)) parts.push_back(part);
    return parts;
}

std::string join(const std::vector<std::string>& parts, std::string_view separator)
{
    return fmt::format("{}", fmt::join(parts, separator));
}

bool is_one_of(const std::vector<std::string>& words, const std::string& word)
{
    return contains(words, word);
}

/// Whether the first segments of `pattern` fit `path`, or, with `whole`, all segments.
bool fits(std::string_view pattern, const std::vector<std::string>& path, bool whole)
{
    const auto segments = split(pattern, '.');
    if (whole ? segments.size() != path.size() : segments.size() <= path.size()) return false;
    for (std::size_t i = 0; i < path.size(); ++i) {
        if (segments[i] != "*" && segments[i] != path[i]) return false;
    }
    return true;
}

const SettingRule* rule_of(std::span<const SettingRule> rules, const std::vector<std::string>& path)
{
    const auto found = std::ranges::find_if(rules, [&](const auto& rule) { return fits(rule.path, path, true); });
    return found == rules.end() ? nullptr : &*found;
}

bool has_rules_below(std::span<const SettingRule> rules, const std::vector<std::string>& path)
{
    return std::ranges::any_of(rules, [&](const auto& rule) { return fits(rule.path, path, false); });
}

/// Returns the names that may stand below `path`.
std::vector<std::string> names_allowed(std::span<const SettingRule> rules, const std::vector<std::string>& path)
{
    std::vector<std::string> names;
    for (const auto& rule : rules) {
        if (!fits(rule.path, path, false)) continue;
        const auto name = split(rule.path, '.')[path.size()];
        if (!contains(names, name)) names.push_back(name);
    }
    return names;
}

/// Whether the last segment of `path` is a name of the user's, such as that of a field.
bool is_own_name(std::span<const SettingRule> rules, const std::vector<std::string>& path)
{
    const auto known = names_allowed(rules, {path.begin(), path.end() - 1});
    return !is_one_of(known, path.back()) && is_one_of(known, "*");
}

[[noreturn]] void refuse_unknown(std::span<const SettingRule> rules, std::vector<std::string> path,
                                 const std::string& source)
{
    const auto full = join(path, ".");
    const auto name = path.back();
    path.pop_back();
    const auto prefix = path.empty() ? "" : join(path, ".") + ".";
    const auto allowed = names_allowed(rules, path);
    auto nearest = nearest_name(name, allowed);
    std::string message = source + ": there is no key '" + full + "'.";
    if (!nearest.empty()) {
        message += " Did you mean '" + prefix + nearest + "'?";
    } else {
        // The name may be right at a wrong place, so it is looked up among the last names of all keys.
        for (const auto& rule : rules) {
            if (nearest.empty() && split(rule.path, '.').back() == name) nearest = rule.path;
        }
        message += nearest.empty() ? " Known" + (prefix.empty() ? "" : " below " + join(path, ".")) + ": " +
                                         join(allowed, ", ") + "."
                                   : " Did you mean '" + nearest + "'?";
    }
    throw UsageError(message);
}

std::string expected(const SettingRule& rule)
{
    const auto& [least, most, above, words] = rule.bounds;
    const auto list = rule.length > 0 ? std::to_string(rule.length) : "a list of";
    std::string text;
    switch (rule.type) {
    case SettingType::Text:
        text = words.empty() ? "a text" : "";
        break;
    case SettingType::Integer:
        text = "a whole number";
        break;
    case SettingType::Number:
    case SettingType::NumberOrTextList:
        text = "a number";
        break;
    case SettingType::Boolean:
        text = "true or false";
        break;
    case SettingType::TextList:
        text = words.empty() ? "a list of texts" : "a list of";
        break;
    case SettingType::NumberList:
        text = list + " numbers";
        break;
    case SettingType::IntegerList:
        text = "a whole number, or a list of such,";
        break;
    }
    if (std::isfinite(least)) text += fmt::format(" {} {:.12g}", above ? "above" : "from", least);
    if (std::isfinite(most)) text += fmt::format(" to {:.12g}", most);

    if (rule.type == SettingType::NumberOrTextList) text += ", or a list of texts";
    if (!words.empty())
        text += (text.empty() ? "" : rule.type == SettingType::TextList ? " " : ", or ") + join(words, ", ");
    return text;
}

/// Returns the shortest text of a number, so that equal numbers have the same text.
std::string shortest_text(double number)
{
    std::array<char, 32> digits;
    // + 0.0 turns -0 into 0.
    char* const end = std::to_chars(digits.data(), digits.data() + digits.size(), number + 0.0).ptr;
    return {digits.data(), end};
}

bool is_number_in_range(const SettingRule& rule, const std::string& text)
{
    const auto& [least, most, above, words] = rule.bounds;
    const auto number = number_in(text);
    return number && (above ? *number > least : *number >= least) && *number <= most &&
           ((rule.type != SettingType::Integer && rule.type != SettingType::IntegerList) ||
            *number == std::floor(*number));
}

void check(const SettingRule& rule, const Setting& setting)
{
    const auto refuse = [&](const std::string& found) {
        throw UsageError("{}: {} is {}; expected {}.", setting.source, setting.path, found, expected(rule));
    };
    const bool may_be_list = rule.type == SettingType::TextList || rule.type == SettingType::NumberList ||
                             rule.type == SettingType::IntegerList || rule.type == SettingType::NumberOrTextList;
    if (setting.is_list && !may_be_list) refuse("a list");
    if (rule.type == SettingType::IntegerList && setting.values.empty()) refuse("an empty list");
    const auto words =
        rule.type == SettingType::Boolean ? std::vector<std::string>{"true", "false"} : rule.bounds.words;
    const bool is_text = rule.type == SettingType::Text || rule.type == SettingType::TextList;
    const bool may_be_any =
        (is_text && words.empty()) || (rule.type == SettingType::NumberOrTextList && setting.is_list);
    for (const auto& value : setting.values) {
        if (is_one_of(rule.not_yet, value)) {
            throw UsageError("{}: {}: {} is not implemented{}", setting.source, setting.path, value,
                             words.empty() ? "; leave the key out."
                                           : fmt::format(". Available: {}.", fmt::join(words, ", ")));
        }
        const bool may_be_number = !is_text && rule.type != SettingType::Boolean;
        if (may_be_any || is_one_of(words, value) || (may_be_number && is_number_in_range(rule, value))) continue;
        const auto nearest = nearest_name(value, words);
        refuse("'" + value + "'" + (nearest.empty() ? "" : " (did you mean '" + nearest + "'?)"));
    }
    // Where a list of numbers may stand, a word may only stand alone.
    const bool is_word = setting.values.size() == 1 && is_one_of(words, setting.values[0]);
    const bool has_words =
        !is_text && std::ranges::any_of(setting.values, [&](const auto& value) { return is_one_of(words, value); });
    const bool is_short_or_long = rule.length > 0 && setting.values.size() != rule.length;
    if (!is_word && (has_words || is_short_or_long)) refuse("[" + join(setting.values, ", ") + "]");
}

std::string place(const std::string& file, const YAML::Mark& mark)
{
    if (mark.line < 0) return file;
    return fmt::format("{}:{}:{}", file, mark.line + 1, mark.column + 1);
}

using TakeSetting = std::function<void(Setting)>;

/// Passes the leaves of a YAML tree to `take`, except at paths that `is_removed` accepts. `source` is the file's name,
/// or `command line`.
void walk(const YAML::Node& node, const std::vector<std::string>& path, const std::string& source,
          std::span<const SettingRule> rules, const std::function<bool(const std::string& path)>& is_removed,
          const TakeSetting& take)
{
    const auto here = place(source, node.Mark());
    const auto* rule = path.empty() ? nullptr : rule_of(rules, path);
    if (rule && !node.IsMap()) {
        Setting setting{join(path, "."), {}, node.IsSequence(), here};
        if (node.IsNull()) return;
        if (node.IsScalar()) setting.values.push_back(node.Scalar());
        for (const auto& entry : node) {
            if (!entry.IsScalar())
                throw UsageError("{}: an entry of {} is no single value.", place(source, entry.Mark()), setting.path);
            setting.values.push_back(entry.Scalar());
        }
        take(std::move(setting));
        return;
    }
    if (!path.empty() && !has_rules_below(rules, path)) {
        if (rule)
            throw UsageError("{}: {} has keys below it; expected {}.", here, fmt::join(path, "."), expected(*rule));
        refuse_unknown(rules, path, here);
    }
    if (node.IsNull()) return;
    if (!node.IsMap()) {
        throw UsageError("{}: {} is no group of keys; below it may stand {}.", here,
                         path.empty() ? "the file" : join(path, "."), fmt::join(names_allowed(rules, path), ", "));
    }
    std::map<std::string, YAML::Mark> seen;
    for (const auto& child : node) {
        if (!child.first.IsScalar() || child.first.Scalar().empty())
            throw UsageError("{}: a name {} is no text, or empty.", place(source, child.first.Mark()),
                             path.empty() ? "at the top" : "below " + join(path, "."));
        auto child_path = path;
        child_path.push_back(child.first.Scalar());
        const auto [earlier, is_new] = seen.emplace(child.first.Scalar(), child.first.Mark());
        if (!is_new) {
            throw UsageError("{}: {} stands twice, here and at {}. Remove one.", place(source, child.first.Mark()),
                             fmt::join(child_path, "."), place(source, earlier->second));
        }
        if (is_removed(join(child_path, "."))) continue;
        if (!rule_of(rules, child_path) && !has_rules_below(rules, child_path)) {
            refuse_unknown(rules, child_path, place(source, child.first.Mark()));
        }
        if (child_path.back().find('.') != std::string::npos)
            throw UsageError("{}: the name '{}' has a point, by which names below each other are joined. Call "
                             "it otherwise; of an array say its name beside it (data.fields.NAME.from).",
                             place(source, child.first.Mark()), child_path.back());
        const auto& below = child.second;
        if ((below.IsNull() || (below.IsMap() && below.size() == 0)) && has_rules_below(rules, child_path) &&
            is_own_name(rules, child_path))
            throw UsageError("{}: {} says nothing. Remove it, or give it some of {}.",
                             place(source, child.first.Mark()), join(child_path, "."),
                             fmt::join(names_allowed(rules, child_path), ", "));
        walk(below, child_path, source, rules, is_removed, take);
    }
}

YAML::Node parse_yaml(const std::string& text, const std::string& source)
{
    try {
        auto documents = YAML::LoadAll(text);
        while (documents.size() > 1 && documents.back().IsNull()) documents.pop_back();  // a last line of ---
        if (documents.size() > 1)
            throw UsageError("{}: the file has {} documents, each after a line of ---; expected one.", source,
                             documents.size());
        return documents.empty() ? YAML::Node() : documents.front();
    } catch (const YAML::ParserException& error) {
        std::istringstream lines(text);
        std::string line;
        for (int i = 0; i <= error.mark.line && std::getline(lines, line); ++i) continue;
        if (line.substr(0, line.find_first_not_of(" \t")).find('\t') != std::string::npos) {
            throw UsageError("{}:{}: the line is indented by a tab; YAML wants spaces.", source, error.mark.line + 1);
        }
        throw UsageError("{}: this is no YAML: {}.", place(source, error.mark), error.msg);
    }
}

/// Reads a text of the command line as it stands: in `output_dir=run #2: long` it has no comment and no group of keys.
/// Quotes, lists, groups and null are read as in YAML.
YAML::Node text_value(const std::string& word)
{
    if (word == "~" || word == "null" || std::string_view("'\"[{").find(word.front()) != std::string_view::npos)
        return parse_yaml(word, "command line");
    return YAML::Node(word);
}

/// Quotes a scalar so that YAML reads it back as the same text.
std::string quoted(const std::string& text)
{
    const bool has_controls = std::ranges::any_of(text, [](unsigned char c) { return c < ' '; });
    if (has_controls) {  // YAML folds line breaks between single quotes
        YAML::Emitter out;
        out << YAML::DoubleQuoted << text;
        return out.c_str();
    }
    const bool plain = !text.empty() && text.find_first_of(":#{}[],&*?|>%@`\"'!") == std::string::npos &&
                       text.front() != ' ' && text.back() != ' ' && text.front() != '-' &&
                       !is_one_of({"~", "null", "Null", "NULL"}, text);
    if (plain || number_in(text)) return text;
    std::string quoted = "'";
    for (const char c : text) quoted += c == '\'' ? std::string("''") : std::string(1, c);
    return quoted + "'";
}

}  // namespace

const SettingRule* rule_of(std::span<const SettingRule> rules, const std::string& path)
{
    return rule_of(rules, split(path, '.'));
}

std::optional<double> number_in(const std::string& text)
{
    double number = 0;
    const auto* const end = text.data() + text.size();
    const auto [last, error] =
        std::from_chars(text.data() + (text.starts_with('+') && !text.starts_with("+-") ? 1 : 0), end, number);
    return error == std::errc() && last == end && std::isfinite(number) ? std::optional(number) : std::nullopt;
}

void Settings::add(Setting setting)
{
    // `fields.p=x` and `fields.p.from=x` set the same, so the later one replaces the other.
    std::erase_if(settings_, [&](const Setting& known) {
        return known.path.starts_with(setting.path + ".") || setting.path.starts_with(known.path + ".");
    });
    for (auto& known : settings_) {
        if (known.path == setting.path) {
            known = std::move(setting);
            return;
        }
    }
    settings_.push_back(std::move(setting));
}

Settings Settings::read(const std::filesystem::path& file, std::span<const std::string> overrides,
                        std::span<const SettingRule> rules)
{
    Settings settings;
    const auto take = [&](Setting setting) { settings.add(std::move(setting)); };

    if (std::filesystem::is_fifo(file) || std::filesystem::is_character_file(file)) {
        throw IoError("configuration {} is no file but a stream. Save it to a file: every rank reads it.",
                      file.string());
    }
    std::ifstream stream(file);
    std::ostringstream content;
    content << stream.rdbuf();
    if (!stream || !std::filesystem::is_regular_file(file)) {
        throw IoError("configuration {} cannot be read. Is the path right?", file.string());
    }
    // Keys that the command line removes from the file may be unknown, since they may belong to another model.
    std::map<std::string, bool> removed;  // and whether the file has the key
    for (const auto& word : overrides) {
        if (word.starts_with('~')) removed.emplace(word.substr(1), false);
    }
    walk(
        parse_yaml(content.str(), file.filename().string()), {}, file.filename().string(), rules,
        [&](const std::string& path) {
            const auto found = removed.find(path);
            if (found != removed.end()) found->second = true;
            return found != removed.end();
        },
        take);

    const auto none_removed = [](const std::string&) { return false; };
    for (const auto& word : overrides) {
        if (word.starts_with('~')) {
            const auto path = word.substr(1);
            for (const auto& setting : settings.settings_) {
                if (setting.source != "command line" || (setting.path != path && !setting.path.starts_with(path + ".")))
                    continue;
                throw UsageError("command line: '{}' stands after {}=..., which it would remove. Put it "
                                 "first to remove the file's, or leave one out.",
                                 word, setting.path);
            }
            if (!removed.at(path)) throw UsageError("command line: '{}' removes nothing: {} is not set.", word, path);
            continue;
        }
        const auto equals = word.find('=');
        if (equals == std::string::npos || equals == 0) {
            throw UsageError("command line: '{}' is no setting; write key=value, e.g. training.num_epochs=20, or ~key "
                             "to remove one.",
                             word);
        }
        if (equals + 1 == word.size())
            throw UsageError("command line: '{}' has no value after the =. To remove the setting: '~{}'.", word,
                             word.substr(0, equals));
        const auto path = split(std::string_view(word).substr(0, equals), '.');
        if (!rule_of(rules, path) && !has_rules_below(rules, path)) refuse_unknown(rules, path, "command line");
        const auto* rule = rule_of(rules, path);
        const auto value = rule && rule->type == SettingType::Text
                               ? text_value(word.substr(equals + 1))
                               : parse_yaml(word.substr(equals + 1), "command line");
        if (value.IsNull())
            throw UsageError("command line: '{}' gives no value (null). To remove the setting: '~{}'.", word,
                             word.substr(0, equals));
        walk(value, path, "command line", rules, none_removed, [&](Setting setting) {
            setting.source = "command line";
            take(std::move(setting));
        });
    }

    for (const auto& rule : rules) {
        const bool is_pattern = rule.path.find('*') != std::string::npos;
        if (is_pattern || rule.fallback.empty() || settings.has(rule.path)) continue;
        walk(YAML::Load(rule.fallback), split(rule.path, '.'), "default", rules, none_removed, [&](Setting setting) {
            setting.source = "default";
            take(std::move(setting));
        });
    }

    settings.resolve_references();
    for (auto& setting : settings.settings_) {
        for (const auto& value : setting.values) {
            if (value == kMustBeSet) {
                throw UsageError("{0}{1} must be set, e.g. by adding {1}=... to the command line.",
                                 setting.source == "default" ? "" : setting.source + ": ", setting.path);
            }
        }
        const auto& rule = *rule_of(rules, setting.path);
        check(rule, setting);
        setting.type = rule.type;
    }
    return settings;
}

void Settings::resolve_references()
{
    for (auto& setting : settings_) {
        for (auto& value : setting.values) {
            for (int depth = 0; value.find("${") != std::string::npos; ++depth) {
                const auto begin = value.find("${");
                const auto end = value.find('}', begin);
                if (end == std::string::npos || depth > 20) {
                    throw UsageError("{}: {} holds a reference without end: '{}'.", setting.source, setting.path,
                                     value);
                }
                const auto name = value.substr(begin + 2, end - begin - 2);
                std::string replacement;
                if (name.starts_with("env:")) {
                    const char* variable = std::getenv(name.c_str() + 4);
                    if (!variable)
                        throw UsageError("{}: {} needs the environment variable {}, which is not set.", setting.source,
                                         setting.path, name.substr(4));
                    replacement = variable;
                } else {
                    const auto* other = find(name);
                    if (!other || other->is_list)
                        throw UsageError("{}: {} refers to '{}', which has no single value.", setting.source,
                                         setting.path, name);
                    replacement = other->values.at(0);
                }
                value.replace(begin, end - begin + 1, replacement);
            }
        }
    }
}

const Setting* Settings::find(std::string_view path) const
{
    const auto found = std::ranges::find_if(settings_, [&](const auto& setting) { return setting.path == path; });
    return found == settings_.end() ? nullptr : &*found;
}

std::string Settings::text(std::string_view path) const
{
    const auto* setting = find(path);
    if (!setting || setting->values.size() != 1) throw UsageError("{} must have one value.", path);
    return setting->values.front();
}

std::vector<std::string> Settings::names_below(std::string_view prefix) const
{
    std::vector<std::string> names;
    for (const auto& setting : settings_) {
        if (!setting.path.starts_with(std::string(prefix) + ".")) continue;
        auto name = setting.path.substr(prefix.size() + 1);
        name = name.substr(0, name.find('.'));
        if (!contains(names, name)) names.push_back(name);
    }
    return names;
}

std::string Settings::where(std::string_view path) const
{
    const auto* setting = find(path);
    return (setting && setting->source != "default" ? setting->source + ": " : "") + std::string(path);
}

void Settings::refuse(std::string_view path, const std::string& why) const
{
    throw UsageError("{} {}", where(path), why);
}

Facts Settings::facts() const
{
    Facts facts;
    for (const auto& setting : settings_) {
        if (setting.path == "data.shards") continue;
        const auto type = setting.type;
        const bool has_numbers = type == SettingType::Integer || type == SettingType::Number ||
                                 type == SettingType::NumberList || type == SettingType::IntegerList ||
                                 (type == SettingType::NumberOrTextList && !setting.is_list);
        const bool is_list = setting.is_list || type == SettingType::TextList || type == SettingType::NumberList;
        auto values = setting.values;
        for (auto& value : values) {
            if (const auto number = has_numbers ? number_in(value) : std::nullopt) value = shortest_text(*number);
        }
        facts.emplace_back(setting.path, is_list ? "[" + join(values, ", ") + "]" : join(values, ", "));
    }
    return facts;
}

std::string Settings::to_yaml(bool with_sources) const
{
    // Groups stay together, in the order of their first key.
    const std::function<void(std::ostream&, const std::string&, int)> print =
        [&](std::ostream& out, const std::string& prefix, int depth) {
            for (const auto& name : prefix.empty() ? [&] {
                     std::vector<std::string> names;
                     for (const auto& setting : settings_) {
                         const auto first = setting.path.substr(0, setting.path.find('.'));
                         if (!contains(names, first)) names.push_back(first);
                     }
                     return names;
                 }()
                                                   : names_below(prefix)) {
                const auto path = prefix.empty() ? name : prefix + "." + name;
                out << std::string(2 * depth, ' ') << quoted(name) << ":";
                const auto* setting = find(path);
                if (!setting) {
                    out << '\n';
                    print(out, path, depth + 1);
                    continue;
                }
                std::vector<std::string> values;
                for (const auto& value : setting->values) values.push_back(quoted(value));
                out << ' ' << (setting->is_list ? "[" + join(values, ", ") + "]" : values.front());
                if (with_sources) out << "   # " << setting->source;
                out << '\n';
            }
        };
    std::ostringstream out;
    print(out, "", 0);
    return out.str();
}

std::string value_text(const SettingRule& rule)
{
    constexpr double kCount = 1e9;  // an upper bound that no count reaches is not worth showing
    auto shown = rule;
    if (shown.bounds.most >= kCount) shown.bounds.most = std::numeric_limits<double>::infinity();
    return expected(shown);
}

std::string describe(std::span<const SettingRule> rules)
{
    std::size_t width = 0;
    for (const auto& rule : rules) width = std::max(width, rule.path.size() + rule.fallback.size());
    std::ostringstream out;
    for (const auto& rule : rules) {
        const auto key = rule.path + (rule.fallback.empty() ? "" : " = " + rule.fallback);
        out << "  " << key << std::string(width + 5 - key.size(), ' ') << rule.meaning;
        if (!rule.bounds.words.empty() || std::isfinite(rule.bounds.least) || std::isfinite(rule.bounds.most))
            out << " (" << value_text(rule) << ")";
        if (!rule.of.empty()) out << " [" << rule.of << "]";
        out << '\n';
    }
    return out.str();
}

bool is_default(const Setting& setting, const std::vector<SettingRule>& rules)
{
    if (setting.source == "default") return true;
    const auto is_same = [](const std::string& a, const std::string& b) {
        const auto number = number_in(a);
        return a == b || (number && number == number_in(b));
    };
    return std::ranges::any_of(rules, [&](const auto& rule) {
        if (rule.path != setting.path) return false;
        const auto fallback = YAML::Load(rule.fallback);
        if (!fallback.IsSequence())
            return !setting.is_list && fallback.IsScalar() && is_same(setting.values.front(), fallback.Scalar());
        return setting.is_list &&
               std::ranges::equal(setting.values, fallback,
                                  [&](const auto& value, const auto& entry) { return is_same(value, entry.Scalar()); });
    });
}

std::vector<std::string> keys_without_effect(const Settings& settings, const std::vector<SettingRule>& rules)
{
    const auto holds = [&](const std::string& condition) {
        const auto key_and_words = split(condition, '=');
        const auto words = split(key_and_words.back(), '|');
        return std::ranges::any_of(settings.all(), [&](const Setting& other) {
            if (!fits(key_and_words.front(), split(other.path, '.'), true)) return false;
            if (key_and_words.size() == 1) return !is_default(other, rules);
            return std::ranges::any_of(other.values, [&](const auto& value) { return contains(words, value); });
        });
    };
    std::vector<std::string> found;
    for (const auto& setting : settings.all()) {
        const auto* rule = rule_of(rules, setting.path);
        if (!rule || rule->only_with.empty() || is_default(setting, rules)) continue;
        if (std::ranges::any_of(rule->only_with, holds)) continue;
        found.push_back(fmt::format("{} (only with {})", setting.path, fmt::join(rule->only_with, " or ")));
    }
    return found;
}

}  // namespace meshard
