// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/file_pattern.h"

#include <cctype>
#include <glob.h>
#include <regex>

namespace meshard {

namespace {

/// A character, or wildcards beside each other as a regular expression.
struct PatternPiece {
    std::string text;
    bool is_wildcard = false;
};

std::vector<PatternPiece> pieces_of(const std::string& pattern)
{
    std::vector<PatternPiece> pieces;
    const auto add_wildcard = [&](const std::string& expression) {
        if (pieces.empty() || !pieces.back().is_wildcard) pieces.push_back({"", true});
        pieces.back().text += expression;
    };
    for (std::size_t at = 0; at < pattern.size(); ++at) {
        const char c = pattern[at];
        // A bracket after [ or [! is one of the set.
        const std::size_t negation =
            at + 1 < pattern.size() && (pattern[at + 1] == '!' || pattern[at + 1] == '^') ? 1 : 0;
        const std::size_t end = c == '[' ? pattern.find(']', at + 2 + negation) : std::string::npos;
        if (c == '*') {
            add_wildcard("[^/]*");
        } else if (c == '?') {
            add_wildcard("[^/]");
        } else if (end != std::string::npos) {
            std::string set = negation != 0 ? "[^/" : "[";
            for (const char member : pattern.substr(at + 1 + negation, end - at - 1 - negation))
                set += std::string_view("\\[]^").find(member) != std::string_view::npos ? std::string("\\") + member
                                                                                        : std::string(1, member);
            add_wildcard(set + "]");
            at = end;
        } else {
            if (c == '\\' && at + 1 < pattern.size()) ++at;
            pieces.push_back({std::string(1, pattern[at])});
        }
    }
    return pieces;
}

}  // namespace

std::string pattern_of_text(std::string_view text)
{
    std::string pattern;
    for (const char c : text) {
        if (std::string_view("*?[]\\").find(c) != std::string_view::npos) pattern += '\\';
        pattern += c;
    }
    return pattern;
}

std::vector<std::filesystem::path> files_matching(const std::filesystem::path& folder, const std::string& pattern)
{
    std::error_code ignored;
    if (pattern.find('*') == std::string::npos && std::filesystem::exists(folder / pattern, ignored))
        return {folder / pattern};
    const std::filesystem::path whole = std::filesystem::path(pattern_of_text(folder.string())) / pattern;
    glob_t found{};
    std::vector<std::filesystem::path> files;
    if (::glob(whole.c_str(), 0, nullptr, &found) == 0) files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    ::globfree(&found);
    return files;
}

std::optional<std::vector<WildcardText>> wildcard_texts(const std::string& pattern, const std::string& path)
{
    std::string expression;
    for (const PatternPiece& piece : pieces_of(pattern)) {
        if (piece.is_wildcard)
            expression += "(" + piece.text + ")";
        else if (std::isalnum(static_cast<unsigned char>(piece.text.front())) != 0 || piece.text == "/" ||
                 piece.text == "_" || static_cast<unsigned char>(piece.text.front()) >= 128)
            expression += piece.text;
        else
            expression += "\\" + piece.text;
    }
    std::smatch match;
    if (!std::regex_match(path, match, std::regex(expression))) return std::nullopt;
    std::vector<WildcardText> texts;
    for (std::size_t i = 1; i < match.size(); ++i)
        texts.push_back({static_cast<std::size_t>(match.position(i)), match[i].str()});
    return texts;
}

std::string text_of_pattern(const std::string& pattern)
{
    std::string text;
    for (const PatternPiece& piece : pieces_of(pattern))
        if (!piece.is_wildcard) text += piece.text;
    return text;
}

}  // namespace meshard
