// SPDX-License-Identifier: Apache-2.0
#include "apps/console/text_table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace meshard {

std::ostream& operator<<(std::ostream& out, const TextTable& table)
{
    std::vector<std::size_t> widths(table.alignment_.size(), 0);
    for (const auto& row : table.rows_) {
        for (std::size_t k = 0; k < row.size(); ++k) widths[k] = std::max(widths[k], row[k].size());
    }
    for (const auto& row : table.rows_) {
        std::string line;
        for (std::size_t k = 0; k < row.size(); ++k) {
            const std::string space(widths[k] - row[k].size(), ' ');
            line += "  " + (table.alignment_[k] == 'r' ? space + row[k] : row[k] + space);
        }
        line.erase(line.find_last_not_of(' ') + 1);
        out << line << '\n';
    }
    return out;
}

std::string number_text(double value)
{
    char text[40];
    std::snprintf(text, sizeof text, "%.6g", value);
    return text;
}

std::string short_text(double value)
{
    if (!std::isfinite(value)) return "-";
    char text[32];
    std::snprintf(text, sizeof text, "%.4g", value);
    return text;
}

std::string fixed_text(double value, int digits)
{
    char text[400];
    std::snprintf(text, sizeof text, "%.*f", digits, value);
    return text;
}

std::string bytes_text(std::uint64_t bytes)
{
    constexpr const char* units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    if (bytes < 1024) return std::to_string(bytes) + " bytes";
    double size = static_cast<double>(bytes);
    std::size_t unit = 0;
    for (; size >= 1024 && unit + 1 < std::size(units); ++unit) size /= 1024;
    return fixed_text(size, 1) + ' ' + units[unit];
}

std::string count_text(std::int64_t count, const std::string& noun)
{
    return std::to_string(count) + ' ' + noun + (count == 1 ? "" : "s");
}

}  // namespace meshard
