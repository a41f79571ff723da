// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

namespace meshard {

/// Uniform numbers in [0, 1) of the shape of the slice logits (B, N, H, S), which Transolver++ turns into Gumbel noise.
using UniformNoise = std::function<torch::Tensor(const torch::Tensor& logits)>;

/// Shared by all attention layers of a model, so that it can be changed at one place. An undefined function stands for the default: noise
/// while training, none else.
using SharedNoise = std::shared_ptr<UniformNoise>;

struct SliceOptions {
    std::int64_t dim = 0;               ///< channels of the points, C
    std::int64_t num_heads = 1;         ///< H
    std::int64_t head_dim = 1;          ///< D
    std::int64_t num_slices = 1;        ///< S
    bool plus = false;                  ///< Transolver++: a temperature of each point's own, noise, one projection for all
    std::vector<std::int64_t> grid;     ///< extents of a grid whose points come in row-major order; empty for points in any order
    SharedNoise noise;                  ///< of Transolver++; may be null
};

/// The first half of physics attention (Wu et al. 2024, Transolver, eq. 1 and 2), shared by its relatives: each point gives itself to S slices
/// with softmax weights, and each slice takes the weighted mean of its points' features.
///
/// Its parameters are the owner's, under PhysicsNeMo's names: temperature, in_project_slice, in_project_x, in_project_fx (not of Transolver++),
/// proj_temperature (only of Transolver++). On grids the projections are convolutions with a kernel of 3. Which of them the owner adds first
/// decides in which order random numbers are drawn.
class SliceProjection {
public:
    explicit SliceProjection(SliceOptions options) : options_(std::move(options)) {}

    void add_temperature(torch::nn::Module& owner);
    void add_slices(torch::nn::Module& owner);                ///< in_project_slice
    void add_projections(torch::nn::Module& owner);           ///< in_project_x, in_project_fx
    void add_point_temperature(torch::nn::Module& owner);     ///< proj_temperature; nothing unless `plus`
    void make_slices_orthogonal();                            ///< rows of in_project_slice's weight, or its columns if they are fewer

    struct Slices {
        torch::Tensor weights;   ///< (B, N, H, S)
        torch::Tensor tokens;    ///< (B, H, S, D)
    };

    /// @param x   (B, N, C)
    Slices slice(const torch::Tensor& x, bool is_training);

private:
    torch::Tensor project(torch::nn::AnyModule& module, const torch::Tensor& x) const;   // (B, N, C) to (B, N, H, D)
    torch::Tensor slice_weights(const torch::Tensor& x_mid, bool is_training);

    SliceOptions options_;
    torch::Tensor temperature_;                     // (1, 1, H, 1)
    torch::nn::Linear in_project_slice_{nullptr};
    torch::nn::AnyModule in_project_x_;
    torch::nn::AnyModule in_project_fx_;            // empty with `plus`
    torch::nn::Sequential proj_temperature_{nullptr};
};

}  // namespace meshard
