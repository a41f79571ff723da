// SPDX-License-Identifier: Apache-2.0
#include "partition/ghosts/index_map.h"

#include "partition/error.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace meshard {

namespace {

std::int32_t position(std::span<const std::int64_t> sorted_ids, std::int64_t id)
{
    const auto found = std::ranges::lower_bound(sorted_ids, id);
    return found != sorted_ids.end() && *found == id ? static_cast<std::int32_t>(found - sorted_ids.begin()) : -1;
}

}  // namespace

std::int32_t IndexMap::local_row(std::int64_t global_id) const
{
    if (const auto row = position(owned(), global_id); row >= 0) return row;
    // Ghosts are sorted within the block of each owner.
    for (auto first = ghost_owners.begin(); first != ghost_owners.end();) {
        const auto last = std::upper_bound(first, ghost_owners.end(), *first);
        const auto begin = first - ghost_owners.begin();
        if (const auto row = position(ghosts().subspan(begin, last - first), global_id); row >= 0)
            return num_owned + static_cast<std::int32_t>(begin) + row;
        first = last;
    }
    return -1;
}

void IndexMap::validate(std::int32_t part) const
{
    const auto fail = [&](const std::string& what) { throw InvalidInput("IndexMap of part {}: {}", part, what); };
    if (num_owned < 0 || num_owned > num_local())
        fail(fmt::format("num_owned is {}, expected 0 to {} (the number of global ids).", num_owned, num_local()));
    if (std::ssize(ghost_owners) != num_ghosts())
        fail(fmt::format("there are {} ghost owners for {} ghosts.", ghost_owners.size(), num_ghosts()));
    for (std::int32_t i = 0; i < num_local(); ++i)
        if (global_ids[i] < 0 || global_ids[i] >= num_global)
            fail(fmt::format("local row {} has global id {}, expected 0 to {}.", i, global_ids[i], num_global - 1));
    for (std::int32_t i = 1; i < num_owned; ++i)
        if (global_ids[i] <= global_ids[i - 1])
            fail(fmt::format("owned ids are not ascending at local row {} ({}, then {}).", i, global_ids[i - 1],
                             global_ids[i]));
    for (std::int32_t g = 0; g < num_ghosts(); ++g) {
        const auto id = ghosts()[g];
        if (ghost_owners[g] < 0 || ghost_owners[g] == part)
            fail(fmt::format("ghost {} has owner {}, expected another part.", id, ghost_owners[g]));
        if (g > 0 && std::pair(ghost_owners[g], id) <= std::pair(ghost_owners[g - 1], ghosts()[g - 1]))
            fail(fmt::format("ghosts are not sorted by (owner, global id) at local row {}.", num_owned + g));
        if (position(owned(), id) >= 0) fail(fmt::format("ghost {} is owned here too.", id));
    }
    // A row has one owner, so no two blocks of ghosts may hold the same id.
    std::vector<std::int64_t> ids(ghosts().begin(), ghosts().end());
    std::ranges::sort(ids);
    if (const auto twice = std::ranges::adjacent_find(ids); twice != ids.end())
        fail(fmt::format("ghost {} is listed with two owners.", *twice));
}

std::string to_string(const IndexMap& index_map)
{
    auto text = fmt::format("IndexMap: {} owned + {} ghosts", index_map.num_owned, index_map.num_ghosts());
    auto owners = index_map.ghost_owners;
    owners.erase(std::unique(owners.begin(), owners.end()), owners.end());
    for (std::size_t i = 0; i < owners.size(); ++i)
        text += (i > 0 ? ", " : owners.size() == 1 ? " from part " : " from parts ") + std::to_string(owners[i]);
    return text;
}

}  // namespace meshard
