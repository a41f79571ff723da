// SPDX-License-Identifier: Apache-2.0
#include "partition/cut/part_walk.h"

#include <algorithm>

namespace meshard {

PartWalk::PartWalk(const Csr& graph, const std::vector<std::int32_t>& owners, std::size_t longest)
    : graph_(graph), owners_(owners), longest_(longest), seen_in_(owners.size(), 0)
{
}

bool PartWalk::may_break(std::int32_t row)
{
    const auto part = owners_[row];
    std::size_t num_missing = 0;
    ++stamp_;
    seen_in_[row] = stamp_;
    walk_.clear();
    for (const auto j : graph_.row(row)) {
        if (owners_[j] != part) continue;
        if (walk_.empty()) {
            walk_.push_back(j);
            seen_in_[j] = stamp_;
        } else {
            ++num_missing;
        }
    }
    const auto is_neighbor = [&](std::int32_t j) { return std::ranges::find(graph_.row(row), j) != graph_.row(row).end(); };
    for (std::size_t next = 0; next < walk_.size() && num_missing > 0; ++next) {
        if (walk_.size() > longest_) return true;
        for (const auto j : graph_.row(walk_[next])) {
            if (owners_[j] != part || seen_in_[j] == stamp_) continue;
            seen_in_[j] = stamp_;
            walk_.push_back(j);
            num_missing -= is_neighbor(j);
        }
    }
    return num_missing > 0;
}

}  // namespace meshard
