// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace meshard {

/// How the ranks' values of a Partial are combined.
enum class Reduction : std::uint8_t { Sum, Max, Min };

/// How a tensor is distributed over the ranks of one axis of a device mesh.
struct Placement {
    enum class Kind : std::uint8_t { Replicate, Shard, Partial };

    Kind kind = Kind::Replicate;
    Reduction reduction = Reduction::Sum;  ///< for a Partial
    std::int64_t dim = 0;                  ///< for a Shard: the sharded tensor dimension

    bool is_replicate() const { return kind == Kind::Replicate; }
    bool is_shard() const { return kind == Kind::Shard; }
    bool is_partial() const { return kind == Kind::Partial; }
    bool operator==(const Placement&) const = default;
};

/// Every rank holds the whole.
inline Placement Replicate()
{
    return {};
}

/// Every rank holds its own extent of dimension `dim`; extents may differ and be zero.
inline Placement Shard(std::int64_t dim)
{
    return {Placement::Kind::Shard, Reduction::Sum, dim};
}

/// Every rank holds a tensor of the shape of the whole; the value is the reduction over the ranks, which is still
/// pending.
inline Placement Partial(Reduction reduction = Reduction::Sum)
{
    return {Placement::Kind::Partial, reduction, 0};
}

/// For example `Replicate`, `Shard(1)`, `Partial(sum)`.
std::string to_string(const Placement& placement);

}  // namespace meshard
