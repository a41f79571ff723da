// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cstdint>
#include <string>

namespace meshard {

template <class Options>
class OptionTable;

/// Constructor arguments of a vision transformer. Meanings and bounds: `vision_transformer_option_table`.
struct VisionTransformerOptions {
    std::int64_t in_channels = 0;   ///< must be set
    std::int64_t out_channels = 0;  ///< must be set
    std::int64_t height = 0;        ///< height of the images; must be set, a multiple of patch_size
    std::int64_t width = 0;
    std::int64_t patch_size = 4;
    std::int64_t n_layers = 4;
    std::int64_t n_hidden = 256;
    std::int64_t n_head = 8;
    std::int64_t mlp_ratio = 4;
    std::string act = "gelu";

    /// @throws InvalidInput naming the option, its value and what is allowed.
    void validate() const;
};

/// Declares all options.
const OptionTable<VisionTransformerOptions>& vision_transformer_option_table();
VisionTransformerOptions vision_transformer_options(const nlohmann::json& arguments);

/// One layer of a transformer: attention of all tokens to each other, and an MLP, each applied after a layer norm and
/// added to its input.
class AttentionLayerImpl : public torch::nn::Module {
public:
    explicit AttentionLayerImpl(const VisionTransformerOptions& options);

    /// (B, N, C) to (B, N, C)
    torch::Tensor forward(torch::Tensor x);

private:
    std::int64_t num_heads_;
    torch::nn::LayerNorm norm1_{nullptr};
    torch::nn::Linear qkv_{nullptr}, proj_{nullptr};
    torch::nn::Sequential mlp_{nullptr};  // layer norm and MLP
};
TORCH_MODULE(AttentionLayer);

/// A vision transformer (Dosovitskiy et al. 2021) from image to image: patches become tokens, attend to each other, and
/// become patches again. Images may be cut along height, width or both: the convolution of patches exchanges ghosts
/// across cuts, and attention sends keys and values around a ring.
class VisionTransformerImpl : public torch::nn::Module {
public:
    /// Initial values are LibTorch's; positions normal(0, 0.02).
    /// @throws InvalidInput as `VisionTransformerOptions::validate`.
    explicit VisionTransformerImpl(VisionTransformerOptions options);

    /// (B, in_channels, height, width) to (B, out_channels, height, width)
    /// @throws InvalidInput for another shape.
    torch::Tensor forward(const torch::Tensor& image);

private:
    VisionTransformerOptions options_;
    torch::nn::Conv2d patches_{nullptr};
    torch::Tensor positions_;  // (1, C, rows of patches, columns)
    torch::nn::ModuleList layers_;
    torch::nn::LayerNorm norm_{nullptr};
    torch::nn::ConvTranspose2d pixels_{nullptr};
};
TORCH_MODULE(VisionTransformer);

}  // namespace meshard
