// SPDX-License-Identifier: Apache-2.0
#include "io/shards/partition_file.h"

#include "io/foam/foam_file.h"
#include "partition/error.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

namespace meshard {

namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what)
{
    throw IoError("read_partition_file: " + path.string() + " " + what);
}

// Numbers between white space.
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

    std::vector<std::int32_t> numbers = FoamFile(path).read_labels();
    if (const auto bad = std::ranges::find_if(numbers, [](std::int32_t number) { return number < 0; }); bad != numbers.end())
        fail(path, "has " + std::to_string(*bad) + " as its number " + std::to_string(bad - numbers.begin()) + "; expected a part, 0 or above.");
    return numbers;
}

} // namespace meshard
