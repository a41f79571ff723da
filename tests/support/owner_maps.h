// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/ghosts/index_map.h"

#include <memory>
#include <vector>

namespace meshard {

/// The map of the rows that `part` owns, given the owner of every row.
inline std::shared_ptr<const IndexMap> owned(const std::vector<int>& owners, int part)
{
    auto map = std::make_shared<IndexMap>();
    map->num_global = static_cast<std::int64_t>(owners.size());
    for (std::size_t i = 0; i < owners.size(); ++i) {
        if (owners[i] == part) map->global_ids.push_back(static_cast<std::int64_t>(i));
    }
    map->num_owned = static_cast<std::int32_t>(map->global_ids.size());
    return map;
}

}  // namespace meshard
