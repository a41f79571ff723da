// SPDX-License-Identifier: Apache-2.0
#include "models/grids/figconv_layers.h"

#include "models/grids/edge_reductions.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/modulelist.h>

#include <cmath>
#include <numbers>

namespace meshard {
namespace {

using torch::Tensor;

constexpr double kDistanceRange = 4;  // in the encoding of vectors between points and vertices, for any box

/// Normalises the channels of each pixel.
Tensor normed_pixels(torch::nn::LayerNorm norm, const Tensor& image)
{
    return norm(image.movedim(1, -1)).movedim(-1, 1);
}

}  // namespace

Tensor wave_encoding(const Tensor& places, std::int64_t width, double range)
{
    const auto waves = torch::exp2(torch::arange(width / 2, places.options())) * (2 * std::numbers::pi / range);
    const auto phases = places.unsqueeze(-1) * waves;
    return torch::cat({phases.cos(), phases.sin()}, -1).flatten(-2);
}

Tensor fitted(Tensor image, const Tensor& like)
{
    for (std::int64_t dim = 2; dim < 4; ++dim) {
        if (image.size(dim) > like.size(dim)) image = image.narrow(dim, 0, like.size(dim));
    }
    const auto rows = like.size(2) - image.size(2), columns = like.size(3) - image.size(3);
    return rows > 0 || columns > 0 ? torch::constant_pad_nd(image, {0, columns, 0, rows}) : image;
}

std::shared_ptr<torch::nn::Module> holder(const char* name, const std::shared_ptr<torch::nn::Module>& module)
{
    auto outer = std::make_shared<torch::nn::Module>();
    outer->register_module(name, module);
    return outer;
}

ShortcutMlp::ShortcutMlp(std::int64_t in, std::int64_t out) : out_(out)
{
    fc1_ = register_module("fc1", torch::nn::Linear(in, 2 * out));
    norm1_ = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({2 * out})));
    fc2_ = register_module("fc2", torch::nn::Linear(2 * out, out));
    norm2_ = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({out})));
    shortcut_ = register_module("shortcut", torch::nn::Linear(in, out));
}

Tensor ShortcutMlp::of_edges(const Tensor& sources, const Tensor& from, const Tensor& targets, const Tensor& to,
                             const Tensor& own)
{
    const auto weight = torch::cat({fc1_->weight, shortcut_->weight}, 0),
               bias = torch::cat({fc1_->bias, shortcut_->bias}, 0);
    const auto split = sources.size(1), rest = split + targets.size(1);
    auto x = torch::linear(sources, weight.narrow(1, 0, split), bias).index_select(0, from) +
             torch::linear(targets, weight.narrow(1, split, targets.size(1))).index_select(0, to);
    if (own.defined()) x = x + torch::linear(own, weight.narrow(1, rest, weight.size(1) - rest));
    return finished(x.narrow(1, 0, 2 * out_), x.narrow(1, 2 * out_, out_));
}

Tensor ShortcutMlp::finished(const Tensor& hidden, const Tensor& beside)
{
    return torch::gelu(norm2_(fc2_(torch::gelu(norm1_(hidden)))) + beside);
}

FigConvMessages::FigConvMessages(std::int64_t sources, std::int64_t targets, std::int64_t channels,
                                 const FigConvUNetOptions& options)
    : options_(options), channels_(channels)
{
    const auto of_place = options.use_rel_pos_embed ? 3 * options.pos_encode_dim : options.use_rel_pos ? 3 : 0;
    edges_ =
        register_module("edge_transform_mlp", std::make_shared<ShortcutMlp>(sources + targets + of_place, channels));
    out_ = register_module("out_transform_mlp",
                           std::make_shared<ShortcutMlp>(channels * std::ssize(options.reductions), channels));
}

Tensor FigConvMessages::messages(const Tensor& sources, const Tensor& from, const Tensor& targets, const Tensor& to,
                                 const Tensor& offsets) const
{
    Tensor own;
    if (options_.use_rel_pos_embed)
        own = wave_encoding(offsets, options_.pos_encode_dim, kDistanceRange);
    else if (options_.use_rel_pos)
        own = offsets;
    return edges_->of_edges(sources, from, targets, to, own);
}

Tensor FigConvMessages::finished(const Tensor& sums) const
{
    return out_->forward(edge_reductions(options_.reductions, sums, channels_));
}

FigConvPlaneBlock::FigConvPlaneBlock(std::int64_t in, std::int64_t out, std::int64_t kernel, Step step)
{
    const auto add = [this](const char* name, auto conv) {
        register_module(name, holder("conv", conv.ptr()));
        return torch::nn::AnyModule(conv);
    };
    const auto plain = [](std::int64_t from, std::int64_t to, std::int64_t size, std::int64_t stride,
                          std::int64_t padding) {
        return torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, size).stride(stride).padding(padding));
    };
    const auto transposed = [&](std::int64_t factor) {
        return torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(in, out, factor).stride(factor));
    };
    const bool is_up = step == Step::Doubles || step == Step::KeepsTransposed;
    const std::int64_t factor = step == Step::Halves || step == Step::Doubles ? 2 : 1;
    if (is_up)
        conv1_ = add("conv1", transposed(factor));
    else
        conv1_ = add("conv1", plain(in, out, kernel, factor, (kernel - 1) / 2));
    conv2_ = add("conv2", plain(out, out, kernel, 1, (kernel - 1) / 2));
    for (auto* norm : {&norm1_, &norm2_}) *norm = torch::nn::LayerNorm(torch::nn::LayerNormOptions({out}));
    register_module("norm1", holder("feature_transform", norm1_.ptr()));
    register_module("norm2", holder("feature_transform", norm2_.ptr()));
    if (is_up)
        shortcut_ = add("shortcut", transposed(factor));
    else if (factor == 2 || in != out)
        shortcut_ = add("shortcut", plain(in, out, factor, factor, 0));
}

Tensor FigConvPlaneBlock::forward(const Tensor& image)
{
    const auto x = torch::gelu(normed_pixels(norm1_, conv1_.forward(image)));
    const auto y = normed_pixels(norm2_, conv2_.forward(x));
    return y + fitted(shortcut_.is_empty() ? image : shortcut_.forward(image), y);
}

FigConvPlanePool::FigConvPlanePool(std::int64_t in, std::int64_t out, std::string type) : type_(std::move(type))
{
    conv_ = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 1)));
    if (type_ == "attention") {
        auto pool = register_module("pool", std::make_shared<torch::nn::Module>());
        qkv_ = pool->register_module("qkv", torch::nn::Linear(out, 3 * out));
        out_ = pool->register_module("out", torch::nn::Linear(out, out));
    }
    norm_ = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({out})));
}

Tensor FigConvPlanePool::forward(const Tensor& image)
{
    const auto pixels = conv_(image).flatten(2);  // (B, C, pixels)
    if (type_ == "max") return norm_(std::get<0>(pixels.max(2)));
    if (type_ == "mean") return norm_(pixels.mean(2));
    const auto batch = pixels.size(0), channels = pixels.size(1);
    const auto heads =
        qkv_(pixels.transpose(1, 2))
            .view({batch, -1, 3, FigConvUNetOptions::kPoolingHeads, channels / FigConvUNetOptions::kPoolingHeads})
            .permute({2, 0, 3, 1, 4});
    const auto query = heads.select(0, 0).amax(2, true);  // (B, heads, 1, C / heads)
    const auto logits = torch::matmul(query, heads.select(0, 1).transpose(2, 3)) /
                        std::sqrt(static_cast<double>(channels / FigConvUNetOptions::kPoolingHeads));
    return norm_(
        out_(torch::matmul(torch::softmax(logits, -1), heads.select(0, 2)).transpose(1, 2).reshape({batch, channels})));
}

FigConvLinearBlock::FigConvLinearBlock(std::int64_t in, std::int64_t out)
{
    torch::nn::ModuleList block;
    block->push_back(linear_ = torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false)));
    block->push_back(norm_ = torch::nn::LayerNorm(torch::nn::LayerNormOptions({out})));
    register_module("block", block);
}

Tensor FigConvLinearBlock::forward(const Tensor& x)
{
    return torch::gelu(norm_(linear_(x)));
}

FigConvResidualBlock::FigConvResidualBlock(std::int64_t in, std::int64_t out)
{
    torch::nn::ModuleList blocks;
    blocks->push_back(first_ = torch::nn::Linear(in, in));
    blocks->push_back(first_norm_ = torch::nn::LayerNorm(torch::nn::LayerNormOptions({in})));
    blocks->push_back(torch::nn::GELU());
    blocks->push_back(second_ = torch::nn::Linear(in, out));
    blocks->push_back(second_norm_ = torch::nn::LayerNorm(torch::nn::LayerNormOptions({out})));
    register_module("blocks", blocks);
    if (in != out) shortcut_ = register_module("shortcut", torch::nn::Linear(in, out));
}

Tensor FigConvResidualBlock::forward(const Tensor& x)
{
    return torch::gelu(second_norm_(second_(torch::gelu(first_norm_(first_(x))))) + (shortcut_ ? shortcut_(x) : x));
}

}  // namespace meshard
