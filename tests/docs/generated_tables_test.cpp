// SPDX-License-Identifier: Apache-2.0
// Tables of docs/*.md that follow from the program: what stands between a line `<!-- table: WHAT -->` and a line `<!--
// end of table -->`. This test fails when one is out of date, and writes all anew when MESHARD_UPDATE_DOCS is set. WHAT
// is one of
//   verbs                                  of `meshard --help`
//   options of VERB                        of `meshard VERB --help`
//   options of VERB, else as of OTHER      without those that OTHER has just so
//   keys of train                          of `meshard train --list-keys`, but for those of models
//   keys of models                         those
#include "apps/learning/settings/training_config.h"
#include "partition/error.h"
#include "tests/docs/update_docs.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_program.h"
#include "tests/support/test_paths.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>

namespace meshard {
namespace {

using nlohmann::json;

const std::string kEnd = "<!-- end of table -->";

std::vector<std::string> words_of(const std::string& text)
{
    std::istringstream stream(text);
    return {std::istream_iterator<std::string>(stream), {}};
}

std::string output_of(const std::vector<std::string>& arguments)
{
    const auto result = run_program(program_path(), arguments);
    if (result.exit_code != 0) throw InvalidInput("meshard " + arguments.front() + ": " + result.err);
    return result.out;
}

json arguments_of(const std::string& verb)
{
    auto words = words_of(verb);
    words.push_back("--help-json");
    return json::parse(output_of(words)).at("arguments");
}

/// Verbs and their purposes.
std::vector<std::pair<std::string, std::string>> verbs()
{
    std::vector<std::pair<std::string, std::string>> verbs;
    std::istringstream help(output_of({"--help"}));
    std::string line;
    while (std::getline(help, line) && line != "Verbs:") {
    }
    while (std::getline(help, line) && !line.empty()) {
        const auto verb = words_of(line).at(0);
        verbs.emplace_back(verb, line.substr(line.find_first_not_of(' ', line.find(verb) + verb.size())));
    }
    return verbs;
}

/// Plain text for a cell of a table: names of options, extensions and settings as code, like what stands between
/// backquotes.
std::string cell(const std::string& text)
{
    static const std::regex code(R"((^|[ (])(--?[a-z][a-z-]*|\.[a-z][a-z0-9]*|~?[a-z_.]+=[^ ,;)]+|~key)(?=[ ,;:)]|$))");
    std::istringstream pieces(text);
    std::string cell, piece;
    for (bool is_code = false; std::getline(pieces, piece, '`'); is_code = !is_code) {
        const auto marked = is_code ? "`" + piece + "`" : std::regex_replace(piece, code, "$1`$2`");
        bool inside = false;
        for (const char c : marked) {
            inside ^= c == '`';
            if (c == '|' || (c == '*' && !inside)) cell += '\\';
            cell += c == '<' && !inside ? "&lt;" : std::string(1, c);
        }
    }
    return cell;
}

std::string code(const std::string& text)
{
    return text.empty() ? "" : "`" + std::regex_replace(text, std::regex(R"(\|)"), "\\|") + "`";
}

std::string row_of(const json& argument)
{
    std::string names;
    const auto value = argument["value"].get<std::string>();
    const bool is_positional = argument["is_positional"].get<bool>(),
               must_be_given = argument["is_required"].get<bool>();
    if (is_positional) names = code(value);
    const bool with_value = !value.empty() && !is_positional;
    for (std::size_t i = 0; i < argument["names"].size(); ++i) {
        const bool is_last = i + 1 == argument["names"].size();
        names += (names.empty() ? "" : ", ") +
                 code(argument["names"][i].get<std::string>() + (is_last && with_value ? " " + value : ""));
    }
    return "| " + names + " | " + (must_be_given ? "must be given" : cell(argument["fallback"].get<std::string>())) +
           " | " + cell(argument["meaning"].get<std::string>()) + " |\n";
}

std::string options_table(const std::string& verb, const std::string& other)
{
    const auto arguments = arguments_of(verb), known = other.empty() ? json::array() : arguments_of(other);
    std::string rows, same, group;
    for (const auto& argument : arguments) {
        if (std::find(known.begin(), known.end(), argument) != known.end()) {
            for (const auto& name : argument["names"])
                same += (same.empty() ? "" : ", ") + code(name.get<std::string>());
            continue;
        }
        if (const auto heading = argument["group"].get<std::string>(); heading != group) {
            rows += "| **" + cell(heading) + "** | | |\n";
            group = heading;
        }
        rows += row_of(argument);
    }
    if (!same.empty()) rows += "| " + same + " | | as of `" + other + "` |\n";
    return "| option | default | meaning |\n| --- | --- | --- |\n" + rows;
}

std::string keys_table(bool of_models)
{
    std::string rows;
    for (const auto& rule : training_rules()) {
        if (rule.path.starts_with("model.") != of_models) continue;
        const auto fallback = rule.fallback == "???" ? "must be set" : rule.fallback.empty() ? "" : code(rule.fallback);
        rows += "| " + code(rule.path) + " | ";
        if (of_models) rows += cell(rule.of) + " | ";
        rows += cell(value_text(rule)) + " | " + fallback + " | " + cell(rule.meaning) + " |\n";
    }
    const std::string of = of_models ? "of | " : "";
    return "| key | " + of + "value | default | meaning |\n| --- | " + (of_models ? "--- | " : "") +
           "--- | --- | --- |\n" + rows;
}

/// @throws InvalidInput for a name that no table has.
std::string table(const std::string& what)
{
    static const std::regex options(R"(options of ([a-z ]+?)(?:, else as of ([a-z ]+))?)");
    std::smatch match;
    if (std::regex_match(what, match, options)) return options_table(match[1], match[2]);
    if (what == "keys of train") return keys_table(false);
    if (what == "keys of models") return keys_table(true);
    if (what != "verbs")
        throw InvalidInput("there is no table '" + what +
                           "'; tests/docs/generated_tables_test.cpp lists those that there are.");
    std::string rows;
    for (const auto& [verb, purpose] : verbs())
        rows += "| [`" + verb + "`](#meshard-" + verb + ") | " + cell(purpose) + " |\n";
    return "| verb | what it does |\n| --- | --- |\n" + rows;
}

/// A page with its tables as they should be, and which those are.
std::pair<std::string, std::set<std::string>> with_tables(const std::string& page)
{
    static const std::regex begin(R"(<!-- table: (.*) -->)");
    std::istringstream lines(page);
    std::string text, line;
    std::set<std::string> tables;
    while (std::getline(lines, line)) {
        text += line + '\n';
        std::smatch match;
        if (!std::regex_match(line, match, begin)) continue;
        const std::string what = match[1];
        tables.insert(what);
        text += table(what);
        while (std::getline(lines, line) && line != kEnd && !std::regex_match(line, begin)) {
        }
        if (!lines || line != kEnd) throw InvalidInput("the table '" + what + "' has no line " + kEnd + " behind it.");
        text += line + '\n';
    }
    return {text, tables};
}

std::string content_of(const std::filesystem::path& path)
{
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
}

TEST(GeneratedTables, AreThoseOfTheProgram)
{
    std::set<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(source_path("docs"))) {
        if (entry.path().extension() != ".md") continue;
        SCOPED_TRACE(entry.path().string());
        const auto [current, tables] = with_tables(content_of(entry.path()));
        found.insert(tables.begin(), tables.end());
        if (!tables.empty()) expect_up_to_date(entry.path(), current);
    }
    for (const auto& [verb, purpose] : verbs()) {
        const auto is_its_table = [&, start = "options of " + verb](const auto& what) {
            return what == start || what.starts_with(start + ",");
        };
        EXPECT_TRUE(std::any_of(found.begin(), found.end(), is_its_table))
            << "no page has the options of `meshard " << verb << "`: add a chapter to docs/commands.md with the lines\n"
            << "<!-- table: options of " << verb << " -->\n"
            << kEnd << "\nand run " << kUpdateCommand;
    }
    for (const char* what :
         {"verbs", "options of bench partition", "options of bench data", "keys of train", "keys of models"})
        EXPECT_TRUE(found.contains(what)) << what;
}

TEST(GeneratedTables, ReplaceWhatStoodThere)
{
    const auto page = with_tables("# Page\n<!-- table: options of check -->\n| old |\n" + kEnd + "\nprose\n");
    const std::string rows = "| `DIR` | must be given | shards folder to test |\n| `--json` |  | one JSON object on "
                             "stdout instead of the report |\n";
    EXPECT_EQ(page.first,
              "# Page\n<!-- table: options of check -->\n| option | default | meaning |\n| --- | --- | --- |\n" + rows +
                  kEnd + "\nprose\n");
    EXPECT_EQ(with_tables(page.first).first, page.first);
    EXPECT_TRUE(throws_with<InvalidInput>("the table 'verbs' has no line",
                                          [] { with_tables("<!-- table: verbs -->\nprose\n"); }));
    EXPECT_TRUE(throws_with<InvalidInput>(
        "has no line", [] { with_tables("<!-- table: verbs -->\n<!-- table: keys of train -->\n" + kEnd + "\n"); }));
    EXPECT_TRUE(throws_with<InvalidInput>("there is no table 'option of check'",
                                          [] { with_tables("<!-- table: option of check -->\n" + kEnd + "\n"); }));
}

TEST(GeneratedTables, KeepWhatMarkdownWouldTakeAway)
{
    EXPECT_EQ(cell("a | b, 2 * 3, x<y"), "a \\| b, 2 \\* 3, x&lt;y");
    EXPECT_EQ(cell("with --levels, a .vtu (or -o) and ~key; e.g. lr=1e-3"),
              "with `--levels`, a `.vtu` (or `-o`) and `~key`; e.g. `lr=1e-3`");
    EXPECT_EQ(cell("`meshard check --help | less` of --json"), "`meshard check --help \\| less` of `--json`");
    EXPECT_EQ(code("key=value|~key"), "`key=value\\|~key`");
}

/// One line, short enough for a table, beginning like the others, with a name for its value.
void expect_readable(const json& argument)
{
    const auto meaning = argument["meaning"].get<std::string>(), value = argument["value"].get<std::string>();
    EXPECT_FALSE(meaning.empty());
    EXPECT_EQ(meaning.find('\n'), std::string::npos) << meaning;
    EXPECT_LE(meaning.size(), 130U) << meaning;
    EXPECT_FALSE(meaning.ends_with('.')) << meaning;
    static const std::regex of_cli11(R"(\b(TEXT|INT|UINT|FLOAT|BOOLEAN|POSITIVE|NONNEGATIVE)\b|[{}])");
    EXPECT_FALSE(std::regex_search(value, of_cli11)) << value << ": a type_name says what the value is";
}

TEST(HelpTexts, AreOneLineEachAndNameTheirValues)
{
    std::vector<std::string> names{"bench partition", "bench data"};
    for (const auto& [verb, purpose] : verbs()) names.push_back(verb);
    for (const auto& verb : names) {
        for (const auto& argument : arguments_of(verb)) {
            SCOPED_TRACE("meshard " + verb + " " + argument["value"].get<std::string>() + argument["names"].dump());
            expect_readable(argument);
        }
    }
}

TEST(HelpTexts, OfKeysAreOneLineEach)
{
    for (const auto& rule : training_rules()) {
        SCOPED_TRACE(rule.path);
        EXPECT_FALSE(rule.meaning.empty());
        EXPECT_LE(rule.meaning.size(), 130U);
        EXPECT_FALSE(rule.meaning.ends_with('.'));
    }
}

}  // namespace
}  // namespace meshard
