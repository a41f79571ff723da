// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace meshard {

/// Rows chosen from a cloud. The choice depends on global ids and seed, never on the partition: the ids of all ranks
/// together are those that one rank with the whole cloud would choose.
struct PointSample {
    at::Tensor rows;  ///< (chosen), int64: own rows, for example for `to_local(x).index_select(0, rows)`
    at::Tensor ids;   ///< (chosen), int64: their global ids
};

/// `count` random rows, every set of that many equally likely: each id gets a random number, and those with the
/// smallest numbers are chosen. In ascending order of ids. A smaller count with the same seed chooses a subset. Points
/// are plain, Replicate, or cut along their rows, (N, ...); collective if they are cut. The result has no gradient.
/// @throws InvalidInput on every rank if there are fewer rows, and for arguments that differ between ranks
PointSample random_sample(const at::Tensor& points, std::int64_t count, std::uint64_t seed = 0);

}  // namespace meshard
