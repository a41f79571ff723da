// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/csv_table.h"

#include "partition/error.h"

#include <fmt/core.h>

#include <algorithm>
#include <istream>
#include <utility>

namespace meshard {
namespace {

std::vector<std::string> comma_separated(const std::string& line, const std::string& where)
{
    constexpr const char* blanks = " \t\r";
    std::vector<std::string> values;
    if (line.find_first_not_of(blanks) == std::string::npos) return values;
    for (std::size_t at = 0;;) {
        at = std::min(line.find_first_not_of(blanks, at), line.size());
        std::string value;
        if (at < line.size() && line[at] == '"') {
            bool has_ended = false;
            for (++at; at < line.size() && !has_ended; ++at) {
                if (line[at] != '"')
                    value += line[at];
                else if (at + 1 < line.size() && line[at + 1] == '"')
                    value += line[++at];
                else
                    has_ended = true;
            }
            at = std::min(line.find_first_not_of(blanks, at), line.size());
            if (!has_ended || (at < line.size() && line[at] != ','))
                throw IoError("{}: the quotes of value {} do not end before the next comma.", where, values.size() + 1);
        } else {
            const auto end = std::min(line.find(',', at), line.size());
            value = line.substr(at, end - at);
            value.erase(value.find_last_not_of(blanks) + 1);
            at = end;
        }
        values.push_back(std::move(value));
        if (at == line.size()) return values;
        ++at;
    }
}

}  // namespace

std::size_t CsvTable::column(std::string_view name) const
{
    return static_cast<std::size_t>(std::ranges::find(names, name) - names.begin());
}

CsvTable read_csv(std::istream& stream, const std::string& where)
{
    CsvTable table;
    std::string line;
    std::getline(stream, line);
    if (line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);  // spreadsheets write a byte order mark
    table.names = comma_separated(line, where + ", line 1");
    if (table.names.size() == 1 && line.find_first_of(";\t") != std::string::npos)
        throw IoError("{}, line 1: no commas between names, but semicolons or tabs. Save it anew with commas, and with "
                      "points in numbers.",
                      where);
    for (std::size_t number = 2; std::getline(stream, line); ++number) {
        CsvTable::Row row{fmt::format("{}, line {}", where, number), {}};
        row.values = comma_separated(line, row.where);
        if (row.values.empty()) continue;
        if (row.values.size() != table.names.size())
            throw IoError("{}: {} values under {} names. Values with commas in them stand between quotes.", row.where,
                          row.values.size(), table.names.size());
        table.rows.push_back(std::move(row));
    }
    return table;
}

}  // namespace meshard
