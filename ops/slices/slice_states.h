// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/tensor/shard_spec.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace meshard {

/// Attention among the slices of a layer: a differentiable function of tokens (B, H, S, D) and of its own weights that
/// returns states of the same shape.
using AttendFunction = std::function<at::Tensor(const at::Tensor& tokens, const std::vector<at::Tensor>& weights)>;

/// The slices of one layer in forward: their tokens, means over all points (`slice_tokens`), and their states after
/// attention. Small tensors, equal on all ranks over which rows are sharded.
class SliceStates {
public:
    /// One all-reduce of B * H * S * (D + 1) numbers, of float or wider, if rows are sharded.
    ///
    /// @param sums      (B, H, S, D + 1): this rank's weighted features, then weights
    /// @param weights   weights of `attend`, plain
    /// @param rows      layout of the points; null for plain ones
    /// @param record    keep what `backward` needs
    SliceStates(const at::Tensor& sums, at::ScalarType type, double epsilon, const AttendFunction& attend,
                const std::vector<at::Tensor>& weights, SpecPtr rows, bool record);

    const at::Tensor& states() const { return states_; }  ///< (B, H, S, D), without history

    at::Tensor sums() const;  ///< (B, H, S, D + 1): of the points of all ranks, of the type of the states

    struct Gradients {
        at::Tensor sums;                  ///< (B, H, S, D + 1), complete
        at::Tensor states;                ///< (B, H, S, D): of the points of all ranks
        std::vector<at::Tensor> weights;  ///< gradients of the weights of `attend`, from this rank's samples
    };

    /// One all-reduce of B * H * S * D numbers if rows are sharded.
    /// @param states_gradient   (B, H, S, D): the contribution of this rank's points
    Gradients backward(const at::Tensor& states_gradient) const;

private:
    at::Tensor tokens_of_sums() const;
    at::Tensor sums_gradient(const at::Tensor& tokens_gradient) const;

    SpecPtr rows_;
    at::ScalarType type_;
    at::Tensor sums_;  // over all ranks
    double epsilon_;
    at::Tensor tokens_;  // a leaf of the small graph that ends in recorded_
    std::vector<at::Tensor> weights_;
    at::Tensor recorded_;
    at::Tensor states_;
};

}  // namespace meshard
