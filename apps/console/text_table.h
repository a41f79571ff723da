// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

namespace meshard {

/// Rows of text in aligned columns.
class TextTable {
public:
    /// One letter for each column: `l` left, `r` right.
    explicit TextTable(std::string alignment) : alignment_(std::move(alignment)) {}

    /// Missing cells at the end stay empty.
    void add_row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

    friend std::ostream& operator<<(std::ostream& out, const TextTable& table);

private:
    std::string alignment_;
    std::vector<std::vector<std::string>> rows_;
};

/// Formats `value` with six significant digits, e.g. `0.3291908` as `0.329191`.
std::string number_text(double value);

/// Formats `value` with four significant digits, or as `-` if it is not finite.
std::string short_text(double value);

/// Formats `value` with `digits` digits after the point.
std::string fixed_text(double value, int digits);

/// Returns a value for a CSV table, in quotes where it needs them.
std::string csv_text(const std::string& text);

/// Returns the shortest text that reads back as this number; an empty text if it is not finite.
std::string exact_text(double value);

/// Formats a size in the largest binary unit that fits, e.g. `131.4 MiB`.
std::string bytes_text(std::uint64_t bytes);

/// Joins a count and its noun: `1 cell`, `2 cells`, `0 cells`.
std::string count_text(std::int64_t count, const std::string& noun);

}  // namespace meshard
