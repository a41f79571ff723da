// SPDX-License-Identifier: Apache-2.0
#include "io/partition_file.h"

#include "partition/error.h"

#include <charconv>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>

namespace meshard {

namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what)
{
    throw IoError("read_partition_file: " + path.string() + " " + what);
}

// Numbers between white space, up to `end`.
std::vector<std::int32_t> numbers_in(const std::filesystem::path& path, std::string_view text)
{
    std::vector<std::int32_t> numbers;
    const auto* at = text.data();
    const auto* end = text.data() + text.size();
    while (true) {
        while (at != end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t')) ++at;
        if (at == end) return numbers;
        std::int32_t number = 0;
        const auto [next, error] = std::from_chars(at, end, number);
        if (error != std::errc{} || number < 0)
            fail(path, "has '" + std::string(at, std::min<std::ptrdiff_t>(end - at, 12)) + "' as its number " +
                           std::to_string(numbers.size()) + "; expected a part, 0 or above.");
        numbers.push_back(number);
        at = next;
    }
}

} // namespace

std::vector<std::int32_t> read_partition_file(const std::filesystem::path& path)
{
    std::ifstream file(path, std::ios::binary);
    if (!file) fail(path, "cannot be opened; is the name right?");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    if (text.find("FoamFile") == std::string::npos) return numbers_in(path, text);

    if (text.find("binary") < text.find('}')) fail(path, "is binary; write it as ascii.");
    const auto begin = text.find('(', text.find('}'));
    const auto end = text.find(')', begin == std::string::npos ? 0 : begin);
    if (begin == std::string::npos || end == std::string::npos) fail(path, "has no list of numbers in parentheses.");
    const auto numbers = numbers_in(path, std::string_view(text).substr(begin + 1, end - begin - 1));
    const auto count_end = text.find_last_of("0123456789", begin);
    const auto count_begin = text.find_last_not_of("0123456789", count_end) + 1;
    std::int64_t count = -1;
    std::from_chars(text.data() + count_begin, text.data() + count_end + 1, count);
    if (count != static_cast<std::int64_t>(numbers.size()))
        fail(path, "announces " + std::to_string(count) + " numbers and has " + std::to_string(numbers.size()) + ".");
    return numbers;
}

} // namespace meshard
