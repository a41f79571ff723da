// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/comma_separated.h"

#include "partition/error.h"

#include <algorithm>
#include <utility>

namespace meshard {

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

}  // namespace meshard
