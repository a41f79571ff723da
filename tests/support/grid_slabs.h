// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace meshard::test {

/// Rows of each rank of a grid with 16 along its cut axis: uneven, one of several ranks without any, not at multiples
/// of what poolings make one.
inline std::vector<std::int64_t> slabs_of_ranks(int num_ranks)
{
    switch (num_ranks) {
    case 1:
        return {16};
    case 2:
        return {7, 9};
    case 3:
        return {5, 0, 11};
    default:
        return {3, 1, 8, 0, 4};
    }
}

}  // namespace meshard::test
