// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sharding/tensor/shard_spec.h"

namespace meshard {

/// What the slices of a layer do among themselves, a differentiable function of tokens (B, H, S, D) and of weights of its own. It gives states of
/// the same shape.
using AttendFunction = std::function<at::Tensor(const at::Tensor& tokens, const std::vector<at::Tensor>& weights)>;

/// The slices of one layer in its forward pass: means of all points (`slice_tokens`), and what attention makes of them. Small tensors, the
/// same on every rank among which rows are cut.
class SliceStates {
public:
    /// One all-reduce of B * H * S * (D + 1) numbers, of float or wider, where rows are cut.
    ///
    /// @param sums      (B, H, S, D + 1) in double: this rank's weighted features, then weights
    /// @param weights   of `attend`, plain
    /// @param rows      layout of the points; null for plain ones
    /// @param record    keep what `backward` needs
    SliceStates(const at::Tensor& sums, at::ScalarType type, double epsilon, const AttendFunction& attend, const std::vector<at::Tensor>& weights,
                SpecPtr rows, bool record);

    const at::Tensor& states() const { return states_; }   ///< (B, H, S, D), without history

    struct Gradients {
        at::Tensor sums;                   ///< (B, H, S, D + 1), complete
        std::vector<at::Tensor> weights;   ///< of `attend`, from this rank's samples
    };

    /// One all-reduce of B * H * S * D numbers where rows are cut.
    /// @param states_gradient   (B, H, S, D) in double: what this rank's points add to it
    Gradients backward(const at::Tensor& states_gradient) const;

private:
    SpecPtr rows_;
    at::ScalarType type_;
    at::Tensor norm_;      // (B, H, S, 1)
    at::Tensor tokens_;    // a leaf of the small graph that ends in recorded_
    std::vector<at::Tensor> weights_;
    at::Tensor recorded_;
    at::Tensor states_;
};

}  // namespace meshard
