// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace meshard {

/// `text` as a part of a pattern that matches only itself.
std::string pattern_of_text(std::string_view text);

/// The files that match `pattern` (`*`, `?`, `[a-z]`), sorted. It is relative to `folder`, whose name is no pattern, or absolute. A file
/// of just that name is taken if there is no `*` in it.
std::vector<std::filesystem::path> files_matching(const std::filesystem::path& folder, const std::string& pattern);

}  // namespace meshard
