// SPDX-License-Identifier: Apache-2.0
#include "apps/console/text_table.h"

#include "apps/console/console.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>

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
        out << without_control_characters(line) << '\n';
    }
    return out;
}

std::string number_text(double value)
{
    return fmt::format("{:.6g}", value);
}

std::string short_text(double value)
{
    return std::isfinite(value) ? fmt::format("{:.4g}", value) : "-";
}

std::string fixed_text(double value, int digits)
{
    return fmt::format("{:.{}f}", value, digits);
}

std::string csv_text(const std::string& text)
{
    if (text.find_first_of(",\"\n") == std::string::npos) return text;
    std::string quoted = "\"";
    for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
    return quoted + "\"";
}

std::string exact_text(double value)
{
    if (!std::isfinite(value)) return {};
    char text[32];
    const auto [end, error] = std::to_chars(text, text + sizeof text, value);
    return {text, end};
}

std::string bytes_text(std::uint64_t bytes)
{
    constexpr const char* units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    if (bytes < 1024) return std::to_string(bytes) + " bytes";
    double size = static_cast<double>(bytes);
    std::size_t unit = 0;
    for (; size >= 1024 && unit + 1 < std::size(units); ++unit) size /= 1024;
    return fmt::format("{:.1f} {}", size, units[unit]);
}

std::string count_text(std::int64_t count, const std::string& noun)
{
    return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace meshard
