// SPDX-License-Identifier: Apache-2.0
#include "apps/program/command_line.h"

#include "apps/program/options.h"
#include "apps/program/verb_help.h"
#include "partition/lists.h"
#include "partition/nearest_name.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <iostream>
#include <limits>

namespace meshard {

namespace {

std::vector<std::string> option_names(const CLI::App& app)
{
    std::vector<std::string> names;
    for (const CLI::Option* option : app.get_options()) {
        for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
        for (const std::string& name : option->get_snames()) names.push_back("-" + name);
    }
    return names;
}

// Stands for the bracket at the beginning of a value.
constexpr char kBracket = '\x01';

/// Throws if arguments are left that belong to no option and no positional.
void refuse_extras(const CLI::App& app)
{
    std::vector<std::string> extras = app.remaining();
    std::erase(extras, "--");  // arguments after it are not options
    if (extras.empty()) return;

    // An unknown option leaves its value among the extras, too; the message names the option.
    const auto option = std::ranges::find_if(extras, [](const std::string& s) { return s.starts_with("-"); });
    const std::string see = fmt::format(" `meshard {} --help` lists the options.", app.get_name());
    if (option == extras.end()) {
        auto extra = extras.front();
        if (extra.starts_with(kBracket)) extra.front() = '[';
        throw UsageError("unexpected argument '{}'.{}", extra, see);
    }

    const std::string name = option->substr(0, option->find('='));
    const std::vector<std::string> known = option_names(app);
    // A single letter resembles no name.
    const std::string nearest = name.starts_with("--") ? nearest_name(name, known) : "";
    throw UsageError("unknown option '{}'.{}", name,
                     nearest.empty() ? see : fmt::format(" Did you mean '{}'?", nearest));
}

/// Turns CLI11's message on a value that is not a number into one that says which numbers are expected.
std::string conversion_fault(CLI::App& app, const std::string& text)
{
    constexpr std::string_view kBeginning = "Could not convert: ";
    const auto equals = text.find(" = ");
    auto* const option = text.starts_with(kBeginning) && equals != std::string::npos
                             ? app.get_option_no_throw(text.substr(kBeginning.size(), equals - kBeginning.size()))
                             : nullptr;
    if (!option) return text;
    const auto value = text.substr(equals + 3);
    auto beginning = fmt::format("{} is '{}'; expected a ", option->get_name(), value);
    double number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (end != value.data() + value.size()) return beginning + "number.";
    bool is_wide = true;  // whether the option holds 64 bits
    try {
        option->clear();
        option->add_result(std::to_string(std::int64_t{1} << 32));
        option->run_callback();
    } catch (const CLI::Error&) {
        is_wide = false;
    }
    const auto most =
        is_wide ? std::numeric_limits<std::int64_t>::max() : std::int64_t{std::numeric_limits<std::int32_t>::max()};
    return fmt::format("{}whole number of {}{}.", beginning, number < 0 ? "at least -" : "at most ", most);
}

/// Returns whether help calls numbers so, among them all whole ones.
bool is_word_of_numbers(std::string_view word)
{
    return word == "N" || word == "K" || word == "S" || word == "T" || word == "STEPS";
}

/// Makes options take whole numbers as decimal ones: CLI11 reads `010` as an octal number, `08` as none, and no text as
/// what the option is without it.
void take_decimal_numbers(CLI::App& app)
{
    for (CLI::App* group : app.get_subcommands([](CLI::App*) { return true; })) take_decimal_numbers(*group);
    for (CLI::Option* option : app.get_options()) {
        const auto type = option->get_type_name();
        if (!is_word_of_numbers(type.substr(0, type.find_first_of(":,")))) continue;
        option->transform([option](std::string value) {
            const std::size_t begin = value.starts_with('-') || value.starts_with('+') ? 1 : 0;
            while (begin + 1 < value.size() && value[begin] == '0' && std::isdigit(value[begin + 1]) != 0)
                value.erase(begin, 1);
            if (value.empty() ||
                (begin + 1 < value.size() && value[begin] == '0' && std::isalpha(value[begin + 1]) != 0))
                throw UsageError("{} is '{}'; expected a number in decimal digits.", option->get_name(), value);
            return value;
        });
    }
}

/// Gives values of options back the bracket that `with_hidden_brackets` took.
void show_brackets(CLI::App& app)
{
    for (CLI::App* group : app.get_subcommands([](CLI::App*) { return true; })) show_brackets(*group);
    for (CLI::Option* option : app.get_options()) {
        option->transform([](std::string value) {
            if (value.starts_with(kBracket)) value.front() = '[';
            return value;
        });
    }
}

/// The arguments without the brackets at the beginnings of values: CLI11 takes `[a.vtp]` for a list, and so for the
/// file a.vtp.
std::vector<std::string> with_hidden_brackets(std::span<const std::string> arguments)
{
    std::vector<std::string> hidden(arguments.begin(), arguments.end());
    for (auto& argument : hidden) {
        const auto begin = argument.starts_with("--") ? argument.find('=') + 1 : 0;  // of --name=value, the value's
        if (begin < argument.size() && argument[begin] == '[') argument[begin] = kBracket;
    }
    return hidden;
}

/// Throws for numbers beyond 64 bits, which CLI11 replaces by the largest one without a word.
void refuse_wide_numbers(const CLI::App& app)
{
    for (const CLI::Option* option : app.get_options()) {
        const auto type = option->get_type_name();
        if (!is_word_of_numbers(type.substr(0, type.find(':')))) continue;
        for (const auto& value : option->results()) {
            std::int64_t number = 0;
            const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
            if (error != std::errc::result_out_of_range || end != value.data() + value.size()) continue;
            throw UsageError("{} is '{}'; expected a whole number of at most {}.", option->get_name(), value,
                             std::numeric_limits<std::int64_t>::max());
        }
    }
}

/// Returns an option's value in a form that is equal on all ranks: a file or folder as its absolute path without links,
/// an input file with its size.
std::string identity(const CLI::Option& option, const std::string& value)
{
    std::error_code error;
    const auto status = std::filesystem::status(value, error);
    const bool is_output = option.check_lname("output");  // the rank that writes it may have made it
    if (value.empty() || (!std::filesystem::exists(status) && !is_output)) return value;
    const auto place = std::filesystem::weakly_canonical(std::filesystem::absolute(value, error), error);
    if (error) return value;
    if (is_output || !std::filesystem::is_regular_file(status)) return place.string();
    return fmt::format("{} ({} bytes)", place.string(), std::filesystem::file_size(place, error));
}

struct CommandFacts {
    std::string verb;
    Facts added, options;
};

CommandFacts& command_facts()
{
    static CommandFacts facts;
    return facts;
}

void note_options(const CLI::App& app)
{
    auto& facts = command_facts();
    facts.verb = app.get_name();
    facts.options.clear();
    for (const CLI::Option* option : app.get_options()) {
        const auto& values = option->results();
        const bool has_settings = option->get_type_name().find("key=value") != std::string::npos;
        for (std::size_t i = 0; i < values.size(); ++i) {
            std::error_code too_long;
            if (has_settings && !std::filesystem::exists(values[i], too_long)) continue;
            facts.options.emplace_back(option->get_name() + (i > 0 ? " " + std::to_string(i + 1) : ""),
                                       identity(*option, values[i]));
        }
    }
}

}  // namespace

Facts facts_of_command()
{
    const auto& [verb, added, options] = command_facts();
    Facts facts{{"the verb", verb}};
    append(facts, added);
    append(facts, options);
    std::error_code error;
    facts.emplace_back("the working folder", std::filesystem::current_path(error).string());
    return facts;
}

void add_facts(const Facts& facts)
{
    auto& added = command_facts().added;
    append(added, facts);
}

bool parse_arguments(CLI::App& app, std::span<const std::string> arguments)
{
    app.allow_extras();
    if (arguments.size() == 1 && arguments.front() == "--help-json") {
        std::cout << help_json(app) << '\n';
        return false;
    }
    take_decimal_numbers(app);
    show_brackets(app);  // before all other checks, since each takes the first place
    auto given = with_hidden_brackets(arguments);
    std::ranges::reverse(given);  // the order that CLI::App::parse expects
    try {
        app.parse(std::move(given));
    } catch (const CLI::CallForHelp&) {
        std::cout << help_text(app);
        return false;
    } catch (const CLI::ParseError& error) {
        // A required option may be missing because it was misspelled, so an unknown option is reported first.
        if (dynamic_cast<const CLI::RequiredError*>(&error)) refuse_extras(app);
        std::string text =
            dynamic_cast<const CLI::ConversionError*>(&error) ? conversion_fault(app, error.what()) : error.what();
        // For numbers that must be above 0, CLI11 prints the largest double with its 309 digits.
        if (text.find(" to " + std::to_string(std::numeric_limits<double>::max())) != std::string::npos)
            text = text.substr(0, text.find(" not in range")) + " is not above 0";
        if (!text.ends_with(".")) text += '.';
        throw UsageError("{} See `meshard {} --help`.", text, app.get_name());
    }
    refuse_extras(app);
    refuse_wide_numbers(app);
    note_options(app);
    say_on_interruption_of(app.get_name(), "");
    return true;
}

void add_config_option(CLI::App& app, ConfigWords& config, const std::string& meaning)
{
    add_named(app, "config", config.words, "CONFIG.yaml [key=value|~key ...]", meaning)->required();
}

void add_rank_options(CLI::App& app, LocalRanks& ranks, const std::string& meaning)
{
    auto* const number = add_named(app, "--nproc", ranks.number, "N", meaning)->check(CLI::PositiveNumber);
    if (ranks.number > 0) number->capture_default_str();
    app.add_flag("--oversubscribe", ranks.oversubscribes, "start them although they are more than four for each core");
}

void add_json_option(CLI::App& app, bool& json)
{
    app.add_flag("--json", json, "one JSON object on stdout instead of the report");
}

void add_verify_option(CLI::App& app, bool& no_verify)
{
    app.add_flag("--no-verify", no_verify,
                 "read pieces of shards although their bytes differ from the manifest's hashes");
}

void add_compress_option(CLI::App& app, std::string& name)
{
    add_shown(app, "--compress", name, "KIND",
              "compression of the files: none (files can then be mapped instead of read), zlib or lz4");
}

Compression parse_compression(const std::string& name)
{
    const std::vector<std::string> names{"none", "zlib", "lz4"};
    const auto found = std::ranges::find(names, name);
    if (found == names.end()) {
        throw UsageError("--compress is '{}'; expected none, zlib or lz4.{}", name, suggestion(name, names));
    }
    const auto compression = static_cast<Compression>(found - names.begin());
    if (compression != Compression::None && !is_available(compression))
        throw UsageError("--compress is '{}', which this build does not have. Use zlib, or none.", name);
    return compression;
}

}  // namespace meshard
