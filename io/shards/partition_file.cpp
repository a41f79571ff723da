// SPDX-License-Identifier: Apache-2.0
#include "io/shards/partition_file.h"

#include "io/foam/foam_file.h"
#include "partition/error.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string>
#include <string_view>

namespace meshard {

namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what)
{
    throw IoError("read_partition_file: {} {}", path.string(), what);
}

bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

// Reads numbers between white space, after `num_before` earlier ones. @return the number of all.
std::int64_t take_numbers(const std::filesystem::path& path, std::string_view text, std::int64_t num_before,
                          const std::function<void(std::int32_t)>& take)
{
    const auto* at = text.data();
    const auto* end = text.data() + text.size();
    while (true) {
        while (at != end && is_blank(*at)) ++at;
        if (at == end) return num_before;
        std::int32_t number = 0;
        const auto [next, error] = std::from_chars(at, end, number);
        if (error != std::errc{} || number < 0 || (next != end && !is_blank(*next)))
            fail(path, fmt::format("has '{}' for row {}; expected a part, a whole number from 0.",
                                   std::string(at, std::find_if(at, std::min(end, at + 12), is_blank)), num_before));
        take(number);
        ++num_before;
        at = next;
    }
}

}  // namespace

void read_partition_file(const std::filesystem::path& path, const std::function<void(std::int32_t)>& take)
{
    constexpr std::size_t block = std::size_t{1} << 20;
    std::ifstream file(path, std::ios::binary);
    if (!file) fail(path, "cannot be opened; is the name right?");
    std::string text;
    std::int64_t num_taken = 0;
    for (bool is_first = true; file; is_first = false) {
        const auto kept = text.size();  // the beginning of a number whose end is in the next block
        text.resize(kept + block);
        file.read(text.data() + kept, block);
        text.resize(kept + static_cast<std::size_t>(file.gcount()));
        if (is_first && text.find("FoamFile") != std::string::npos) {
            const auto numbers = FoamFile(path).read_labels();
            if (const auto bad = std::ranges::find_if(numbers, [](std::int32_t number) { return number < 0; });
                bad != numbers.end())
                fail(path, fmt::format("has '{}' for row {}; expected a part, a whole number from 0.", *bad,
                                       bad - numbers.begin()));
            std::ranges::for_each(numbers, take);
            return;
        }
        auto whole = text.size();
        while (file && whole > 0 && !is_blank(text[whole - 1])) --whole;
        num_taken = take_numbers(path, std::string_view(text).substr(0, whole), num_taken, take);
        text.erase(0, whole);
        if (text.size() > block)
            fail(path, "has a million characters without white space; expected numbers, one a line.");
    }
}

}  // namespace meshard
