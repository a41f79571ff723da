// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace meshard {

/// The text with small letters for the capital ones of ASCII.
std::string lower_case(std::string_view text);

/// The extension of a file, or of a folder that may be written with a slash behind it, in small letters.
std::string lower_extension(const std::filesystem::path& path);

/// The candidate with the smallest edit distance to `name` (case ignored), or empty if none is similar enough to be a
/// suggestion.
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

/// The end of an error's text, " Did you mean 'CANDIDATE'?" with the nearest one, or nothing if none is similar.
std::string suggestion(std::string_view name, std::span<const std::string> candidates);

}  // namespace meshard
