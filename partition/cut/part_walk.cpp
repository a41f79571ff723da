// SPDX-License-Identifier: Apache-2.0
#include "partition/cut/part_walk.h"

namespace meshard {

PartWalk::PartWalk(const Csr& graph, const std::vector<std::int32_t>& owners, std::size_t longest)
    : graph_(graph), owners_(owners), longest_(longest), seen_in_(owners.size(), 0)
{
}

bool PartWalk::may_break(std::int32_t row)
{
    const auto part = owners_[row];
    std::size_t num_missing = 0, num_visited = 0;
    stamp_ += 2;
    const auto is_missing = stamp_, is_seen = stamp_ + 1;
    seen_in_[row] = is_seen;
    walk_.clear();
    for (const auto j : graph_.row(row)) {
        if (owners_[j] != part) continue;
        if (walk_.empty()) {
            walk_.push_back(j);
            seen_in_[j] = is_seen;
        } else {
            seen_in_[j] = is_missing;
            ++num_missing;
        }
    }
    constexpr std::size_t neighbors_a_row = 64;  // rows with more neighbours are hubs, which end a walk
    for (std::size_t next = 0; next < walk_.size() && num_missing > 0; ++next) {
        if (walk_.size() > longest_ || num_visited > neighbors_a_row * longest_) return true;
        num_visited += graph_.row(walk_[next]).size();
        for (const auto j : graph_.row(walk_[next])) {
            if (owners_[j] != part || seen_in_[j] == is_seen) continue;
            num_missing -= seen_in_[j] == is_missing;
            seen_in_[j] = is_seen;
            walk_.push_back(j);
        }
    }
    return num_missing > 0;
}

}  // namespace meshard
