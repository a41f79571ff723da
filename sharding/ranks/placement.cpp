// SPDX-License-Identifier: Apache-2.0
#include "sharding/ranks/placement.h"

#include <fmt/core.h>

namespace meshard {

std::string to_string(const Placement& placement)
{
    switch (placement.kind) {
    case Placement::Kind::Replicate:
        return "Replicate";
    case Placement::Kind::Shard:
        return fmt::format("Shard({})", placement.dim);
    case Placement::Kind::Partial:
        break;
    }
    switch (placement.reduction) {
    case Reduction::Sum:
        return "Partial(sum)";
    case Reduction::Max:
        return "Partial(max)";
    case Reduction::Min:
        return "Partial(min)";
    }
    return "Partial";
}

}  // namespace meshard
