// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace meshard {

/// A pattern that matches only `text`.
std::string pattern_of_text(std::string_view text);

/// The files that match `pattern` (`*`, `?`, `[a-z]`), sorted. The pattern is absolute or relative to `folder`, whose
/// name is taken literally. A file with exactly that name is taken if the pattern has no `*`.
std::vector<std::filesystem::path> files_matching(const std::filesystem::path& folder, const std::string& pattern);

/// What a wildcard of a pattern stands for in a path.
struct WildcardText {
    std::size_t begin = 0;  ///< position in the path
    std::string text;
};

/// What the wildcards of `pattern` stand for in `path`, one of the paths that it matches, in their order. Wildcards
/// beside each other (`??`, `[0-9]*`) count as one; of several ways to match, the earlier ones take as much as they
/// can. None if `path` does not match.
std::optional<std::vector<WildcardText>> wildcard_texts(const std::string& pattern, const std::string& path);

/// `pattern` without its wildcards: what all names that it matches have in common.
std::string text_of_pattern(const std::string& pattern);

}  // namespace meshard
