// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/fused/fused_block.h"
#include "ops/slices/row_noise.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace meshard {

/// Returns uniform numbers in [0, 1) with the shape of the slice logits (B, N, H, S), which Transolver++ converts to
/// Gumbel noise.
using UniformNoise = std::function<torch::Tensor(const torch::Tensor& logits)>;

/// When Transolver++ adds noise. The reference always does, also in evaluation.
enum class NoiseWhen : std::uint8_t { Training, Always, Never };

/// Noise of a model, shared by its attention layers. The numbers depend on the points' ids (ops/slices/row_noise.h),
/// unless the caller provides a function.
struct SliceNoise {
    explicit SliceNoise(std::uint64_t seed) : rows(seed) {}

    RowNoise rows;
    NoiseWhen when = NoiseWhen::Training;
    UniformNoise given;  ///< replaces these numbers in training and evaluation; may be empty
};
using SharedNoise = std::shared_ptr<SliceNoise>;

/// Makes noise with the seed of LibTorch's default generator, without drawing a number from it.
SharedNoise make_noise();

/// The noise that depends on the points' ids; null if there is no noise.
inline std::shared_ptr<RowNoise> rows_of(const SharedNoise& noise)
{
    return noise ? std::shared_ptr<RowNoise>(noise, &noise->rows) : nullptr;
}

struct SliceOptions {
    std::int64_t dim = 0;         ///< channels of the points, C
    std::int64_t num_heads = 1;   ///< H
    std::int64_t head_dim = 1;    ///< D
    std::int64_t num_slices = 1;  ///< S
    bool plus = false;            ///< Transolver++: point temperatures, noise, and one projection instead of two
    /// Extents of a grid, whose points are in row-major order; empty for points in any order.
    std::vector<std::int64_t> grid = {};
    SharedNoise noise = {};  ///< for Transolver++ and dropout; null if neither is used
    bool authors_constants =
        /// Whether to use constants of the paper's code instead of PhysicsNeMo's: 1e-5 added to a slice's weight;
        /// temperature not bounded, on grids within 0.1 to 5.
        false;
};

/// The first half of physics attention (Wu et al. 2024, Transolver, eq. 1 and 2), which other attention layers use too:
/// each point is assigned to S slices with softmax weights, and each slice gets the weighted mean of its points'
/// features.
///
/// Its parameters are registered in the module `owner`, under PhysicsNeMo's names: temperature, in_project_slice,
/// in_project_x, in_project_fx (not in Transolver++), proj_temperature (only in Transolver++). On grids the projections
/// are convolutions with a kernel of 3. The order in which the owner adds them is the order in which random numbers are
/// drawn.
class SliceProjection {
public:
    explicit SliceProjection(SliceOptions options) : options_(std::move(options)) {}

    void add_temperature(torch::nn::Module& owner);
    void add_slices(torch::nn::Module& owner);             ///< in_project_slice
    void add_projections(torch::nn::Module& owner);        ///< in_project_x, in_project_fx
    void add_point_temperature(torch::nn::Module& owner);  ///< proj_temperature, only with `plus`
    void make_slices_orthogonal();  ///< makes the rows of in_project_slice's weight orthogonal, or its columns if they
                                    ///< are fewer

    struct Slices {
        torch::Tensor weights;  ///< (B, N, H, S)
        torch::Tensor tokens;   ///< (B, H, S, D)
    };

    /// @param x   (B, N, C)
    Slices slice(const torch::Tensor& x, bool is_training);

    /// Sets the projections' weights, sizes and noise in a block of the fused operators. Returns the reason why they
    /// cannot compute `slice`, or null if they can.
    const char* fuse_into(FusedBlock& block, bool is_training) const;

private:
    bool has_noise(bool is_training) const;
    torch::Tensor project(torch::nn::AnyModule& module, const torch::Tensor& x) const;  // (B, N, C) to (B, N, H, D)
    std::pair<double, double> temperature_bounds() const;
    double weight_epsilon() const;  ///< added to the weight of a slice
    torch::Tensor slice_weights(const torch::Tensor& x_mid, bool is_training);

    SliceOptions options_;
    torch::Tensor temperature_;  // (1, 1, H, 1)
    torch::nn::Linear in_project_slice_{nullptr};
    torch::nn::AnyModule in_project_x_;
    torch::nn::AnyModule in_project_fx_;  // empty with `plus`
    torch::nn::Sequential proj_temperature_{nullptr};
};

}  // namespace meshard
