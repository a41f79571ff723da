// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/csr.h"

#include <cstdint>
#include <vector>

namespace meshard {

/// Finds out by short walks whether a part stays connected without one of its rows.
class PartWalk {
public:
    /// Keeps references to both, which must outlive it. @param longest upper bound of the rows that a walk visits.
    PartWalk(const Csr& graph, const std::vector<std::int32_t>& owners, std::size_t longest);

    /// False if a walk from one neighbour of `row` in its part reaches all others without `row`: the part stays connected without it. True otherwise, also if
    /// the walk has reached its limit.
    bool may_break(std::int32_t row);

private:
    const Csr& graph_;
    const std::vector<std::int32_t>& owners_;
    std::size_t longest_;
    std::vector<std::int64_t> seen_in_;  // the walk, times two, that looks for a row; one more once it has seen it
    std::vector<std::int32_t> walk_;
    std::int64_t stamp_ = 0;
};

}  // namespace meshard
