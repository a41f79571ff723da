// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace meshard {

/// Time of one call of an operator on plain and on sharded tensors.
struct OperatorCost {
    std::string name;
    double plain_nanoseconds = 0;
    double sharded_nanoseconds = 0;
    double added_nanoseconds = 0;  ///< median of the rounds' differences
};

/// Times operators on small tensors on one rank, so that the cost of a call dominates; plain and sharded calls
/// alternate.
std::vector<OperatorCost> time_operators(int num_rounds);

}  // namespace meshard
