// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace meshard {

/// What the rule table adds to one call of an operator.
struct OperatorCost {
    std::string name;
    double plain_nanoseconds = 0;
    double sharded_nanoseconds = 0;
    double added_nanoseconds = 0;  ///< median of the rounds' differences
};

/// Small tensors on one rank, so that what a call itself costs is all that counts; plain and sharded calls alternate in rounds.
std::vector<OperatorCost> time_operators(int num_rounds);

}  // namespace meshard
