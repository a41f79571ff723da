// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/grids/figconv_options.h"
#include "models/grids/plane_pairs.h"
#include "models/layers/memory_mode.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <memory>
#include <vector>

namespace meshard {

class FigConvLinearBlock;
class FigConvMessages;
class FigConvPlaneBlock;
class FigConvPlanePool;
class FigConvResidualBlock;

/// What a FIGConvUNet computes from a cloud of points.
struct FigConvUNetResult {
    torch::Tensor points;  ///< (B, N, out_channels), with the points' layout
    torch::Tensor scalar;  ///< (B, 1), e.g. the drag coefficient; undefined without `use_scalar_output`
};

/// A U-Net on factorised implicit grids (Choy et al. 2025, "FIGConvNet"), with the parameters of PhysicsNeMo's
/// `FIGConvUNet`: points send messages to the vertices of three grids, each coarse along another axis; two-dimensional
/// convolutions run on each grid, which after each block reads the others at its own vertices; the vertices send
/// messages back to the points, and the coarsest grids are pooled to one number.
///
/// Points may be sharded in any way; with `knn` along their rows alone. Messages to vertices are summed over the ranks
/// in one all-reduce for all planes, and so are the gradients of the grids' features that points read; max and min
/// reductions need one more, `knn` the messages of a search. In between every rank computes the grids: gradients of
/// these parameters are complete on each rank and count once.
class FigConvUNetImpl : public torch::nn::Module, public HasMemoryModes {
public:
    /// Initial values are drawn as in the reference, from LibTorch's default generator.
    /// @throws InvalidInput as `FigConvUNetOptions::validate`.
    explicit FigConvUNetImpl(FigConvUNetOptions options);

    /// @param vertices   (B, N, 3): the points
    /// @param features   (B, N, in_channels) with `has_input_features`, else undefined; with the points' layout
    ///                   Collective if the points are sharded. @throws InvalidInput for other shapes, and as
    ///                   `nearest_points`
    FigConvUNetResult forward(const torch::Tensor& vertices, const torch::Tensor& features = {});

    const FigConvUNetOptions& options() const { return options_; }

    /// `recomputed` keeps the inputs of each block and of the messages. @throws InvalidInput for `streamed`
    void set_memory(MemoryMode mode) override;

private:
    struct Cloud;
    using Planes = std::vector<torch::Tensor>;

    void require_shapes(const torch::Tensor& vertices, const torch::Tensor& features) const;
    Planes features_of_vertices(const Cloud& cloud);
    Planes communicated(const Planes& packed) const;
    Planes run_block(std::size_t level, bool up, std::size_t block, const Planes& packed) const;
    torch::Tensor scalar_of(const std::vector<Planes>& levels);
    torch::Tensor features_of_points(const Cloud& cloud, const Planes& packed);
    std::vector<torch::Tensor>
    run_with_memory_mode(const std::function<std::vector<torch::Tensor>(const std::vector<torch::Tensor>&)>& step,
                         const std::vector<torch::Tensor>& inputs) const;

    FigConvUNetOptions options_;
    MemoryMode memory_ = MemoryMode::Stored;
    std::vector<GridPlane> planes_;
    std::vector<std::shared_ptr<FigConvMessages>> to_vertices_, to_points_;  // one for each plane
    // Indexed by level, block, plane.
    std::vector<std::vector<std::vector<std::shared_ptr<FigConvPlaneBlock>>>> down_, up_;
    // Indexed by pooling layer, plane.
    std::vector<std::vector<std::shared_ptr<FigConvPlanePool>>> pools_;
    std::vector<std::shared_ptr<FigConvResidualBlock>> scalar_blocks_;
    std::shared_ptr<FigConvLinearBlock> scalar_last_, point_lift_;
    torch::nn::Linear scalar_projection_{nullptr}, projection_first_{nullptr}, projection_last_{nullptr};
    torch::nn::LayerNorm projection_norm_{nullptr};
};
TORCH_MODULE(FigConvUNet);

}  // namespace meshard
