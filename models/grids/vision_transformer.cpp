// SPDX-License-Identifier: Apache-2.0
#include "models/grids/vision_transformer.h"

#include "models/layers/mlp.h"
#include "models/layers/option_table.h"
#include "ops/grids/grid_rows.h"
#include "sharding/tensor/shard_tensor.h"

namespace meshard {
namespace {

constexpr double kPositionStd = 0.02;

}  // namespace

const OptionTable<VisionTransformerOptions>& vision_transformer_option_table()
{
    using O = VisionTransformerOptions;
    static const OptionTable<O> table(
        "VisionTransformer",
        {
            {"in_channels", &O::in_channels, "channels of the image", {.least = 1}},
            {"out_channels", &O::out_channels, "channels of the result", {.least = 1}},
            {"height", &O::height, "rows of the image", {.least = 1}},
            {"width", &O::width, "columns of the image", {.least = 1}},
            {"patch_size",
             &O::patch_size,
             "rows and columns that become one token; of vit one number for both",
             {.least = 1}},
            {"n_layers", &O::n_layers, "blocks", {.least = 1}},
            {"n_hidden", &O::n_hidden, "channels", {.least = 1}},
            {"n_head", &O::n_head, "attention heads; divides n_hidden", {.least = 1}},
            {"mlp_ratio", &O::mlp_ratio, "width of the blocks' MLPs divided by n_hidden", {.least = 1}},
            {"act", &O::act, "activation of the MLPs"},
        });
    return table;
}

VisionTransformerOptions vision_transformer_options(const nlohmann::json& arguments)
{
    return vision_transformer_option_table().read(arguments);
}

void VisionTransformerOptions::validate() const
{
    vision_transformer_option_table().check(*this);
    const OptionChecks checks("VisionTransformer");
    checks.multiple("height", height, "patch_size", patch_size);
    checks.multiple("width", width, "patch_size", patch_size);
    checks.multiple("n_hidden", n_hidden, "n_head", n_head);
}

AttentionLayerImpl::AttentionLayerImpl(const VisionTransformerOptions& options) : num_heads_(options.n_head)
{
    const auto dim = options.n_hidden;
    norm1_ = register_module("norm1", layer_norm(dim));
    qkv_ = register_module("qkv", torch::nn::Linear(dim, 3 * dim));
    proj_ = register_module("proj", torch::nn::Linear(dim, dim));
    mlp_ = register_module("mlp",
                           torch::nn::Sequential(layer_norm(dim), Mlp(dim, options.mlp_ratio * dim, dim, options.act)));
}

torch::Tensor AttentionLayerImpl::forward(torch::Tensor x)
{
    const auto head_dim = x.size(-1) / num_heads_;
    const auto parts = qkv_(norm1_(x)).chunk(3, -1);
    const auto heads = [&](const torch::Tensor& part) {
        return part.unflatten(-1, {num_heads_, head_dim}).transpose(1, 2);
    };  // (B, H, N, D)
    const auto attended = torch::scaled_dot_product_attention(heads(parts[0]), heads(parts[1]), heads(parts[2]));
    x = x + proj_(attended.transpose(1, 2).flatten(2));
    return x + mlp_->forward(x);
}

VisionTransformerImpl::VisionTransformerImpl(VisionTransformerOptions options) : options_(std::move(options))
{
    options_.validate();
    const auto dim = options_.n_hidden, patch = options_.patch_size;
    patches_ = register_module(
        "patches", torch::nn::Conv2d(torch::nn::Conv2dOptions(options_.in_channels, dim, patch).stride(patch)));
    positions_ = register_parameter(
        "positions", kPositionStd * torch::randn({1, dim, options_.height / patch, options_.width / patch}));
    for (std::int64_t i = 0; i < options_.n_layers; ++i) layers_->push_back(AttentionLayer(options_));
    register_module("layers", layers_);
    norm_ = register_module("norm", layer_norm(dim));
    pixels_ = register_module(
        "pixels",
        torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(dim, options_.out_channels, patch).stride(patch)));
}

torch::Tensor VisionTransformerImpl::forward(const torch::Tensor& image)
{
    if (image.dim() != 4 || image.size(1) != options_.in_channels || image.size(2) != options_.height ||
        image.size(3) != options_.width) {
        OptionChecks("VisionTransformer")
            .refuse("the image must be (batch, {}, {}, {}), and has the shape {}.", options_.in_channels,
                    options_.height, options_.width, c10::str(image.sizes()));
    }
    const auto patches = patches_(image) + positions_;  // (B, C, h, w)
    auto x = rows_of_grid(patches);                     // (B, h * w, C)
    for (const auto& layer : *layers_) x = layer->as<AttentionLayer>()->forward(x);
    return pixels_(grid_of_rows(norm_(x), patches.sizes().slice(2), is_sharded(patches) ? spec_of(patches) : nullptr));
}

}  // namespace meshard
