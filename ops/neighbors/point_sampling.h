// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace meshard {

/// Rows chosen from a cloud. The choice depends on positions, global ids and seed, never on the partition: the ids of
/// all ranks together are those that one rank with the whole cloud would choose.
struct PointSample {
    at::Tensor rows;  ///< (chosen), int64: own rows, for example for `to_local(x).index_select(0, rows)`
    at::Tensor ids;   ///< (chosen), int64: their global ids
};

// All functions take points that are plain, Replicate, or cut along their rows, (N, ...) or (N, D) of a floating type
// with D 1 to 3, and are collective if these are cut. Results have no gradient. All throw InvalidInput on every rank
// for wrong shapes, coordinates that are not finite, wrong arguments, and arguments that differ between ranks.

/// Chooses `count` random rows, every set equally likely: each id gets a random number, and those with the smallest
/// numbers are chosen. Sorted by id. A smaller count with the same seed chooses a subset.
/// @throws InvalidInput if there are fewer rows
PointSample random_sample(const at::Tensor& points, std::int64_t count, std::uint64_t seed = 0);

/// Chooses one point of each non-empty cube of side `voxel_size` (counted from the origin): the nearest to its center,
/// of several the one with the smallest id. Sorted by id.
PointSample voxel_sample(const at::Tensor& points, double voxel_size);

/// Chooses a maximal set of points with distances of at least `radius`: visits the ids in random order and chooses
/// every point that is not too near to a chosen one. Sorted by id. Memory is proportional to the number of pairs within
/// the radius: take a `voxel_sample` of a much denser cloud first.
PointSample poisson_disk_sample(const at::Tensor& points, double radius, std::uint64_t seed = 0);

/// Chooses `count` points: first the one with id `first`, then repeatedly the one farthest from all chosen before, of
/// several the one with the smallest id (Gonzalez 1985). In the order chosen. Each point needs one round of messages
/// and one pass over all own points.
/// @throws InvalidInput if there are fewer points, or none has id `first`
PointSample farthest_point_sample(const at::Tensor& points, std::int64_t count, std::int64_t first = 0);

}  // namespace meshard
