// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/neighbors/neighbors.h"
#include "ops/rows/cut_rows.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace meshard {

struct InterpolationOptions {
    std::int64_t num_neighbors = 1;  ///< 1: the nearest value
    double power = 2;                ///< weights are one over the distance to this power
};

/// Brings values from the points of one cloud to those of another by inverse distance over the nearest ones (Shepard 1968). Made once, used for as many
/// fields as there are: then only values of points that some target needs travel.
///
/// Clouds are plain, Replicate, or cut along their rows, each in its own way. A target on a source takes its value (of several the mean). Results are
/// those of whole clouds on any number of ranks.
class CloudInterpolation {
public:
    /// Collective where a cloud is cut.
    /// @param sources  (N, D), D 1 to 3, of a floating type  @param targets  (M, D), of the same type
    /// @throws InvalidInput on every rank as `knn`, if there are no sources, or if the power is not positive
    CloudInterpolation(const at::Tensor& sources, const at::Tensor& targets, const InterpolationOptions& options = {});

    /// (N, ...), lying as the sources do, to (M, ...), lying as the targets do. Collective where sources are cut; differentiable.
    /// @throws InvalidInput if the values have other rows than the sources
    at::Tensor operator()(const at::Tensor& values) const;

    /// Of this rank's targets among the sources, nearest first.
    const Neighbors& neighbors() const { return neighbors_; }

private:
    Neighbors neighbors_;
    at::Tensor weights_;  ///< (entries), double; those of a target add up to 1
    CutRows targets_;
};

}  // namespace meshard
