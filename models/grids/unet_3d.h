// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/layers/memory_mode.h"

#include <nlohmann/json_fwd.hpp>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace meshard {

template <class Options>
class OptionTable;

/// Constructor arguments of a U-Net in three dimensions, with the names and defaults of checkpoints of the class
/// `UNet`. Meanings and bounds: `unet_3d_option_table`.
struct UNet3dOptions {
    std::int64_t in_channels = 0;   ///< must be set
    std::int64_t out_channels = 0;  ///< must be set
    std::int64_t kernel_size = 3;
    std::int64_t stride = 1;
    std::int64_t model_depth = 5;
    std::vector<std::int64_t> feature_map_channels = {64, 64, 128, 128, 256, 256, 512, 512, 1024, 1024};
    std::int64_t num_conv_blocks = 2;
    std::string conv_activation = "relu";
    std::string conv_transpose_activation;  ///< empty: none
    std::int64_t padding = 1;
    std::string padding_mode = "zeros";
    std::string pooling_type = "MaxPool3d";
    std::int64_t pool_size = 2;
    std::string normalization = "groupnorm";  ///< empty: none
    std::int64_t norm_groups = 1;             ///< num_groups of `normalization_args`, for group norms only
    double norm_epsilon = 1e-5;               ///< eps of `normalization_args`
    bool norm_affine = true;                  ///< affine of `normalization_args`
    bool use_attn_gate = false;
    /// For each gate, coarse to fine: channels of the gating features.
    std::vector<std::int64_t> attn_decoder_feature_maps;
    /// For each gate, coarse to fine: channels of the gated features.
    std::vector<std::int64_t> attn_feature_map_channels;
    std::int64_t attn_intermediate_channels = 0;
    bool gradient_checkpointing = true;

    /// @throws InvalidInput naming the option, its value and what is allowed.
    void validate() const;
};

/// Declares all options.
const OptionTable<UNet3dOptions>& unet_3d_option_table();

/// Reads the arguments of a checkpoint; absent ones keep their defaults; a `normalization` of null means none.
/// @throws InvalidInput for a name that is not an argument of UNet, a value of the wrong type, or other
/// `normalization_args`.
UNet3dOptions unet_3d_options(const nlohmann::json& arguments);
nlohmann::json to_json(const UNet3dOptions& options);

/// Scales the skip connection of an encoder level by one number between 0 and 1.
///
/// The reference normalises the gate's input over its only channel, which gives the norm's bias at every cell for any
/// input. Hence the number is sigmoid(psi.1.bias), and the other parameters, which checkpoints have, have zero
/// gradients. They take part with a factor of zero, so that an optimiser with weight decay treats them as in the
/// reference.
class SkipGateImpl : public torch::nn::Module {
public:
    /// @param decoder_channels   channels of the coarser level's features
    /// @param skip_channels      channels of the skip connection
    SkipGateImpl(std::int64_t decoder_channels, std::int64_t skip_channels, std::int64_t channels);

    /// (B, skip_channels, X, Y, Z) to the same shape
    torch::Tensor forward(const torch::Tensor& skip);

private:
    torch::Tensor bias_;  // psi.1.bias
};
TORCH_MODULE(SkipGate);

/// A U-Net for volumes (Ronneberger, Fischer, Brox 2015; Çiçek et al. 2016) with the parameters of PhysicsNeMo's
/// `UNet`: `num_conv_blocks` convolutions with norm and activation on each of `model_depth` grids, from fine to coarse
/// by pooling and back by transposed convolutions; on the way back the features of a grid from the way down are
/// appended, scaled by attention gates with `use_attn_gate`.
///
/// Volumes may be cut along any of their three directions, anywhere: convolutions and poolings receive the rows that
/// they need across the cut.
class UNet3dImpl : public torch::nn::Module, public HasMemoryModes {
public:
    /// Initial values are drawn as in the reference, from LibTorch's default generator.
    /// @throws InvalidInput as `UNet3dOptions::validate`.
    explicit UNet3dImpl(UNet3dOptions options);

    /// (B, in_channels, X, Y, Z) to (B, out_channels, X, Y, Z). With a stride of 1 and a padding of half the kernel, X,
    /// Y and Z must be multiples of 2^(model_depth - 1).
    /// @throws InvalidInput for another shape, before any message.
    torch::Tensor forward(const torch::Tensor& volume);

    const UNet3dOptions& options() const { return options_; }

    /// `recomputed` keeps the inputs of each level. @throws InvalidInput for `streamed`
    void set_memory(MemoryMode mode) override;

private:
    class Block;  // a convolution with norm and activation
    struct Level;

    std::shared_ptr<Block> make_block(std::int64_t in, std::int64_t out, bool is_last = false) const;
    torch::Tensor run(const std::shared_ptr<Level>& level, const std::vector<torch::Tensor>& inputs) const;
    void require_shape(const torch::Tensor& volume) const;

    UNet3dOptions options_;
    MemoryMode memory_ = MemoryMode::Stored;
    std::vector<std::shared_ptr<Level>> down_, up_;  // down_: fine to coarse, up_: coarse to fine
    std::shared_ptr<Block> head_;
};
TORCH_MODULE(UNet3d);

}  // namespace meshard
