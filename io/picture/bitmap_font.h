// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Letters made of dots, used if no font is installed.
namespace meshard::bitmap_font {

constexpr std::int32_t width = 5, height = 9;  ///< size of a letter, in dots
constexpr std::int32_t capital_height = 7;     ///< height of a capital, which begins in row 0
constexpr std::int32_t advance = 6;            ///< from one letter to the next

/// Returns whether a letter has a dot there, counted from the top left; characters other than printable ASCII look like
/// '?'.
bool has_dot(char32_t letter, std::int32_t column, std::int32_t row);

}  // namespace meshard::bitmap_font
