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

/// What all ranks of a run must have in common: keys and values, in the order in which a difference is looked for. A key that is not there has no value.
using Facts = std::vector<std::pair<std::string, std::string>>;

/// The ranks of a run were started differently.
class RanksDisagree : public Error {
public:
    /// Names the first key that differs, its values and their ranks. @param packed   facts by rank as `pack` has them; empty: not known
    explicit RanksDisagree(std::span<const std::string> packed);
};

std::string pack(const Facts& facts);
std::uint64_t hash_of(const Facts& facts);  ///< whatever their order

/// The environment variables of this process that are meshard's: MESHARD_...
Facts own_environment();

/// Collective, and the first exchange of a run, whichever program and verb a rank was started with. @throws RanksDisagree on all ranks
void check_agreement(RankMessages& messages, const Facts& facts);

}  // namespace meshard
