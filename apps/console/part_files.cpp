// SPDX-License-Identifier: Apache-2.0
#include "apps/console/part_files.h"

#include "apps/console/console.h"
#include "apps/console/text_table.h"

#include <fmt/core.h>

#include <system_error>

namespace meshard {

std::string size_of_small_parts(std::int64_t num_parts, std::int64_t num_rows, const std::filesystem::path& place)
{
    constexpr std::uint64_t kBytesOfPart = 4300, kLarge = 100 << 20;  // measured on a surface with two arrays
    constexpr std::int64_t kFewRows = 100;                            // parts with fewer rows consist mostly of headers
    const auto bytes = kBytesOfPart * static_cast<std::uint64_t>(num_parts);
    if (bytes < kLarge || num_rows > kFewRows * num_parts) return {};
    std::error_code error;
    const auto space = std::filesystem::space(place, error);
    const auto size = fmt::format("{} make a folder of at least {}", count_text(num_parts, "part"), bytes_text(bytes));
    if (!error && space.available < bytes)
        throw UsageError("{}, and {} has {} left. Ask for fewer.", size, place.string(), bytes_text(space.available));
    return fmt::format("{}, a file a part, for {} of the mesh", size, count_text(num_rows, "row"));
}

}  // namespace meshard
