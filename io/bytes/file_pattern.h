// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace meshard {

/// A pattern that matches only `text`.
std::string pattern_of_text(std::string_view text);

/// The files that match `pattern` (`*`, `?`, `[a-z]`), sorted. The pattern is absolute or relative to `folder`, whose
/// name is taken literally. A file with exactly that name is taken if the pattern has no `*`.
std::vector<std::filesystem::path> files_matching(const std::filesystem::path& folder, const std::string& pattern);

}  // namespace meshard
