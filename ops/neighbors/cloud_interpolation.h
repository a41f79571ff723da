// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/neighbors/neighbors.h"
#include "ops/rows/cut_rows.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace meshard {

struct InterpolationOptions {
    std::int64_t num_neighbors = 1;  ///< 1: the value of the nearest point
    double power = 2;                ///< exponent p of the weights 1 / distance^p
};

/// Interpolates fields from the points of one cloud (sources) to those of another (targets): a mean of the nearest
/// sources' values, weighted by inverse distance (Shepard 1968). Made once, applied to any number of fields: then ranks
/// send only the values that some target needs.
///
/// Clouds are plain, Replicate, or cut along their rows, independently. A target at the position of a source gets its
/// value (of several sources their mean). Results are those of whole clouds on any number of ranks. Of clouds that
/// require gradients the weights have derivatives by the points of both, with the neighbours that were found.
class CloudInterpolation {
public:
    /// Collective if a cloud is cut.
    /// @param sources  (N, D), D 1 to 3, of a floating type  @param targets  (M, D), of the same type
    /// @throws InvalidInput on every rank as `knn`, if there are no sources, or if the power is not positive
    CloudInterpolation(const at::Tensor& sources, const at::Tensor& targets, const InterpolationOptions& options = {});

    /// Interpolates values at the sources, (N, ...) with their layout, to the targets, (M, ...) with theirs. Collective
    /// if the sources are cut; differentiable.
    /// @throws InvalidInput if the values have other rows than the sources
    at::Tensor operator()(const at::Tensor& values) const;

    /// The sources near each of this rank's targets, nearest first.
    const Neighbors& neighbors() const { return neighbors_; }

private:
    Neighbors neighbors_;
    at::Tensor weights_;  ///< (entries), double; the sum over each target's entries is 1
    CutRows targets_;
};

}  // namespace meshard
