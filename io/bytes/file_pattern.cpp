// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/file_pattern.h"

#include <glob.h>

namespace meshard {

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

}  // namespace meshard
