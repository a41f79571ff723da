// SPDX-License-Identifier: Apache-2.0
#include "apps/program/verb_help.h"

#include "apps/console/json_report.h"

#include <CLI/CLI.hpp>

#include <memory>

namespace meshard {
namespace {

/// Returns the placeholder of the option's value without the validators' texts, which CLI11 appends.
std::string value_name(const CLI::Option& option)
{
    if (option.get_type_size() == 0) return {};
    auto text = option.get_type_name();
    try {
        for (int i = 0;; ++i) {
            const auto check = ":" + const_cast<CLI::Option&>(option).get_validator(i)->get_description();  // not const
            if (check.size() > 1 && text.find(check) != std::string::npos) text.erase(text.find(check), check.size());
        }
    } catch (const CLI::OptionNotFound&) {
        // there is no further one
    }
    return text;
}

/// Returns the default as text; a list has no brackets.
std::string fallback_of(const CLI::Option& option)
{
    auto text = option.get_default_str();
    if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
    return option.get_type_size() == 0 ? "" : text;
}

ArgumentHelp argument_help(const CLI::Option& option)
{
    ArgumentHelp help{.names = {},
                      .value = value_name(option),
                      .fallback = fallback_of(option),
                      .meaning = option.get_description(),
                      .group = option.get_group(),
                      .is_positional = option.get_positional(),
                      .is_required = option.get_required()};
    for (const auto& name : option.get_snames()) help.names.push_back("-" + name);
    for (const auto& name : option.get_lnames()) help.names.push_back("--" + name);
    if (help.group == "Options") help.group.clear();
    return help;
}

/// Formats arguments from their ArgumentHelp only.
class HelpFormatter : public CLI::Formatter {
public:
    HelpFormatter() { label("Positionals", "Arguments"); }

    std::string make_option(const CLI::Option* option, bool is_positional) const override
    {
        const auto help = argument_help(*option);
        std::string left = is_positional ? help.value : "";
        if (!is_positional) {
            for (const auto& name : help.names) left += (left.empty() ? "" : ",") + name;
            if (!help.value.empty()) left += " " + help.value;
        }
        auto right = help.meaning;
        if (!help.fallback.empty()) right += " (default: " + help.fallback + ")";
        if (help.is_required && !is_positional) right += " (required)";
        std::ostringstream line;
        CLI::detail::format_help(line, left, right, get_column_width());
        return line.str();
    }

    std::string make_option_usage(const CLI::Option* option) const override
    {
        const auto help = argument_help(*option);
        const bool is_list = option->get_expected_max() >= CLI::detail::expected_max_vector_size &&
                             help.value.find("...") == std::string::npos;
        const auto text = help.value + (is_list ? "..." : "");
        return help.is_required ? text : "[" + text + "]";
    }
};

}  // namespace

std::vector<ArgumentHelp> arguments_of(const CLI::App& app)
{
    std::vector<ArgumentHelp> arguments;
    for (const auto* option : app.get_options()) {
        if (option != app.get_help_ptr()) arguments.push_back(argument_help(*option));
    }
    // CLI11 keeps a group of options as a nested app without a name.
    for (const auto* group : app.get_subcommands([](const CLI::App* group) { return group->get_name().empty(); })) {
        for (auto& argument : arguments_of(*group)) {
            argument.group = group->get_group();
            arguments.push_back(std::move(argument));
        }
    }
    return arguments;
}

std::string help_text(CLI::App& app)
{
    app.formatter(std::make_shared<HelpFormatter>());
    return app.help("meshard");
}

std::string help_json(const CLI::App& app)
{
    Json arguments = Json::array();
    for (const auto& help : arguments_of(app)) {
        arguments.push_back({{"names", help.names},
                             {"value", help.value},
                             {"fallback", help.fallback},
                             {"meaning", help.meaning},
                             {"group", help.group},
                             {"is_positional", help.is_positional},
                             {"is_required", help.is_required}});
    }
    return Json{{"verb", app.get_name()}, {"purpose", app.get_description()}, {"arguments", arguments}}.dump(2);
}

}  // namespace meshard
