// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/csr.h"

#include <cstdint>
#include <vector>

namespace meshard {

/// Finds out by short walks whether parts stay in one piece without a row.
class PartWalk {
public:
    /// Looks at both, which must outlive it. @param longest rows that a walk may see before it gives up.
    PartWalk(const Csr& graph, const std::vector<std::int32_t>& owners, std::size_t longest);

    /// Whether the neighbours of `row` in its part hang together only by way of it, as far as a walk from one of them shows: true also where that
    /// is too far to tell.
    bool may_break(std::int32_t row);

private:
    const Csr& graph_;
    const std::vector<std::int32_t>& owners_;
    std::size_t longest_;
    std::vector<std::int32_t> seen_in_; // the walk that saw a row last
    std::vector<std::int32_t> walk_;
    std::int32_t stamp_ = 0;
};

} // namespace meshard
