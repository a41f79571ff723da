// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/csr.h"

#include <cstdint>
#include <vector>

namespace meshard {

/// Tests by short walks whether a part stays connected without one of its rows.
class PartWalk {
public:
    /// Keeps references to both arguments, which must outlive it. @param longest   upper bound of the rows that a walk
    /// visits.
    PartWalk(const Csr& graph, const std::vector<std::int32_t>& owners, std::size_t longest);

    /// Returns false if a walk from one neighbour of `row` in its part reaches all others without `row`, so that the
    /// part stays connected without it. Returns true otherwise, also if the walk has reached its limit.
    bool may_break(std::int32_t row);

    /// Number of rows of the last walk.
    std::int64_t length() const { return std::ssize(walk_); }

private:
    const Csr& graph_;
    const std::vector<std::int32_t>& owners_;
    std::size_t longest_;
    // Twice the number of the walk that looks for a row; one more once it has found it.
    std::vector<std::int64_t> seen_in_;
    std::vector<std::int32_t> walk_;
    std::int64_t stamp_ = 0;
};

}  // namespace meshard
