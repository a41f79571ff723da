// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/grids/plane_pairs.h"
#include "models/layers/memory_mode.h"

#include <nlohmann/json_fwd.hpp>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

template <class Options>
class OptionTable;

/// Constructor arguments of a FIGConvUNet, with the names and defaults that checkpoints use. What each means and may be: `figconv_unet_option_table`.
struct FigConvUNetOptions {
    std::int64_t in_channels = 0;   ///< must be set
    std::int64_t out_channels = 0;  ///< must be set
    std::int64_t kernel_size = 3;
    std::vector<std::int64_t> hidden_channels = {16, 16, 16, 16};  ///< num_levels + 1 of them, fine to coarse; the reference has no default
    std::int64_t num_levels = 3;
    std::vector<std::int64_t> num_down_blocks = {1, 1, 1};  ///< one a level
    std::vector<std::int64_t> num_up_blocks = {1, 1, 1};    ///< one a level
    std::vector<std::int64_t> mlp_channels = {512, 512};
    std::vector<double> aabb_max = {1, 1, 1};
    std::vector<double> aabb_min = {0, 0, 0};
    std::vector<std::string> memory_formats = {"b_xc_y_z", "b_yc_x_z", "b_zc_x_y"};  ///< of each plane: which axis is flat
    std::vector<std::array<std::int64_t, 3>> resolutions = {{2, 128, 128}, {128, 2, 128}, {128, 128, 2}};
    bool use_rel_pos = true;
    bool use_rel_pos_embed = true;
    std::int64_t pos_encode_dim = 32;
    std::vector<std::string> communication_types = {"sum"};
    std::string to_point_sample_method = "graphconv";
    std::string neighbor_search_type = "radius";
    std::int64_t knn_k = 16;
    std::vector<std::string> reductions = {"mean"};
    bool use_scalar_output = true;
    bool has_input_features = false;
    std::string pooling_type = "max";
    std::vector<std::int64_t> pooling_layers;  ///< levels that the scalar output reads; none: the coarsest

    /// @throws InvalidInput naming the option, its value and what is allowed.
    void validate() const;

    std::vector<GridPlane> planes() const;
};

/// The declaration of all of them but `resolution_memory_format_pairs`, which `figconv_unet_options` reads.
const OptionTable<FigConvUNetOptions>& figconv_unet_option_table();

/// Arguments in which `num_down_blocks` and `num_up_blocks` may be one number for all levels, alone or in a list, or be absent, as ones with a number for each.
nlohmann::json with_blocks_of_each_level(nlohmann::json arguments);

/// Arguments in which `grid_resolution`, vertices along x, y and z, and `plane_resolution`, those of each of three planes along the axis that it flattens, may
/// stand for `resolution_memory_format_pairs`. What is absent of the two is as by default. @throws InvalidInput unless each has three numbers
nlohmann::json with_planes_of_resolutions(nlohmann::json arguments);

/// From the arguments of a checkpoint; absent ones keep their defaults. `voxel_size`, which the reference ignores, is passed over.
/// @throws InvalidInput for a name that is not an argument of FIGConvUNet, or a value of the wrong type.
FigConvUNetOptions figconv_unet_options(const nlohmann::json& arguments);
nlohmann::json to_json(const FigConvUNetOptions& options);

/// What a FIGConvUNet computes from a cloud of points.
struct FigConvUNetResult {
    torch::Tensor points;  ///< (B, N, out_channels), cut as the points are
    torch::Tensor scalar;  ///< (B, 1), e.g. the drag coefficient; undefined without `use_scalar_output`
};

/// A U-Net on factorised implicit grids (Choy et al. 2025, "FIGConvNet"), with the parameters of PhysicsNeMo's `FIGConvUNet`: points send messages to the
/// vertices of three grids, each coarse along another axis; two-dimensional convolutions run on each grid, which after each block read the others at their own
/// vertices; the vertices send messages back to the points, and the coarsest grids are pooled to one number.
///
/// Points may be cut in any way. Messages to vertices are summed over the ranks in one all-reduce for all planes, and the gradients of the grids' features,
/// where points read them, in one; max and min reductions need one more, `knn` the messages of a search. Between them every rank computes the grids: gradients
/// of those parameters are complete on each rank and count once.
class FigConvUNetImpl : public torch::nn::Module, public HasMemoryModes {
public:
    /// Initial values as the reference draws them from LibTorch's default generator.
    /// @throws InvalidInput as `FigConvUNetOptions::validate`.
    explicit FigConvUNetImpl(FigConvUNetOptions options);

    /// @param vertices   (B, N, 3): the points
    /// @param features   (B, N, in_channels) with `has_input_features`, else undefined; cut as the points are
    /// Collective if the points are cut. @throws InvalidInput for other shapes, and as `nearest_points`
    FigConvUNetResult forward(const torch::Tensor& vertices, const torch::Tensor& features = {});

    const FigConvUNetOptions& options() const { return options_; }

    /// `recomputed` keeps the inputs of each block and of the messages. @throws InvalidInput for `streamed`
    void set_memory(MemoryMode mode) override;

private:
    class MessageLayer;
    class PlaneBlock;
    class PlanePool;
    class LinearBlock;
    class ResidualLinearBlock;
    struct Cloud;
    using Planes = std::vector<torch::Tensor>;

    void require_shapes(const torch::Tensor& vertices, const torch::Tensor& features) const;
    Planes features_of_vertices(const Cloud& cloud);
    Planes communicated(const Planes& packed) const;
    Planes run_block(std::size_t level, bool up, std::size_t block, const Planes& packed) const;
    torch::Tensor scalar_of(const std::vector<Planes>& levels);
    torch::Tensor features_of_points(const Cloud& cloud, const Planes& packed);
    std::vector<torch::Tensor> kept_or_again(const std::function<std::vector<torch::Tensor>(const std::vector<torch::Tensor>&)>& step,
                                             const std::vector<torch::Tensor>& inputs) const;

    FigConvUNetOptions options_;
    MemoryMode memory_ = MemoryMode::Stored;
    std::vector<GridPlane> planes_;
    std::vector<std::shared_ptr<MessageLayer>> to_vertices_, to_points_;            // of each plane
    std::vector<std::vector<std::vector<std::shared_ptr<PlaneBlock>>>> down_, up_;  // level, block, plane
    std::vector<std::vector<std::shared_ptr<PlanePool>>> pools_;                    // pooling layer, plane
    std::vector<std::shared_ptr<ResidualLinearBlock>> scalar_blocks_;
    std::shared_ptr<LinearBlock> scalar_last_, point_lift_;
    torch::nn::Linear scalar_projection_{nullptr}, projection_first_{nullptr}, projection_last_{nullptr};
    torch::nn::LayerNorm projection_norm_{nullptr};
};
TORCH_MODULE(FigConvUNet);

}  // namespace meshard
