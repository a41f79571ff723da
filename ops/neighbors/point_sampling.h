// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace meshard {

/// Some rows of a cloud. Which ones depends on positions, global ids and seed, never on the partition: the ids of all ranks together are those that one
/// rank with the whole cloud would choose.
struct PointSample {
    at::Tensor rows;  ///< (chosen), int64: own rows; `to_local(x).index_select(0, rows)` takes their features
    at::Tensor ids;   ///< (chosen), int64: their global ids
};

// All take points that are plain, Replicate, or cut along their rows, (N, ...) or (N, D) of a floating type with D 1 to 3, and are collective where those
// are cut. Results have no gradient. All throw InvalidInput on every rank on wrong shapes, coordinates that are not finite, wrong arguments, and
// arguments in which ranks differ.

/// `count` rows, each set of that many equally likely: those with the smallest random number of their id. Ascending by id.
/// A smaller count with the same seed chooses among the same rows.
/// @throws InvalidInput if there are fewer rows
PointSample random_sample(const at::Tensor& points, std::int64_t count, std::uint64_t seed = 0);

/// One point for each cube of side `voxel_size`, counted from the origin, that holds any: the nearest to its middle, of several that with the smallest id.
/// Ascending by id.
PointSample voxel_sample(const at::Tensor& points, double voxel_size);

/// Points no two of which are nearer to each other than `radius`, and to which none can be added: in a random order of the ids every point is taken that
/// is not too near to one before it. Ascending by id. Memory follows the number of pairs within the radius: of a cloud that is much denser take a
/// `voxel_sample` first.
PointSample poisson_disk_sample(const at::Tensor& points, double radius, std::uint64_t seed = 0);

/// `count` points, the first that with id `first`, every other one farthest from all before it, of several that with the smallest id (Gonzalez 1985).
/// In the order chosen. One round of messages and one look at all own points for each.
/// @throws InvalidInput if there are fewer points, or `first` is none of them
PointSample farthest_point_sample(const at::Tensor& points, std::int64_t count, std::int64_t first = 0);

}  // namespace meshard
