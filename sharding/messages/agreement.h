// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/error.h"
#include "sharding/messages/rank_messages.h"

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// Keys and values that must be equal on all ranks of a run, in the order in which they are compared. A missing key
/// counts as a difference.
using Facts = std::vector<std::pair<std::string, std::string>>;

/// Thrown where the ranks of a run were started with different options or environments.
class RanksDisagree : public Error {
public:
    /// The message names the first key that differs, its values and their ranks.
    /// @param packed   facts of each rank as `pack` returns them; empty for a rank whose facts are not known
    explicit RanksDisagree(std::span<const std::string> packed);
};

/// Thrown where the environment does not say which ranks there are, or says what cannot be.
class LaunchError : public InvalidInput {
public:
    using InvalidInput::InvalidInput;
};

std::string pack(const Facts& facts);
std::uint64_t hash_of(const Facts& facts);  ///< independent of their order

/// Environment variables of this process whose names begin with MESHARD_.
Facts own_environment();

/// Compares the facts of all ranks. Collective; the first exchange of a run, for every program and verb.
/// @throws RanksDisagree on all ranks
void check_agreement(RankMessages& messages, const Facts& facts);

}  // namespace meshard
