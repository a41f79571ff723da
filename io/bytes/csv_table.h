// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

namespace meshard {

/// A table of comma-separated values (RFC 4180, without line breaks in values), whose first line names the columns.
struct CsvTable {
    struct Row {
        std::string where;                ///< table and line, for messages
        std::vector<std::string> values;  ///< one a column
    };

    std::vector<std::string> names;
    std::vector<Row> rows;

    /// Returns the number of columns if no column has this name.
    std::size_t column(std::string_view name) const;
};

/// Reads a table and skips blank lines. Blanks around a value are dropped; between quotes all is kept, and "" is a
/// quote.
/// @param where   begins messages
/// @throws IoError if quotes do not end before the next comma, a line has not as many values as the first, or its only
/// name has semicolons or tabs.
CsvTable read_csv(std::istream& stream, const std::string& where);

}  // namespace meshard
