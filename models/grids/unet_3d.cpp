// SPDX-License-Identifier: Apache-2.0
#include "models/grids/unet_3d.h"

#include "models/layers/option_table.h"
#include "ops/slices/activations.h"
#include "sharding/memory/recompute.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <iterator>
#include <string_view>

namespace meshard {
namespace {

/// Activations of torch.nn.functional that are none of `activation_functions`, or have another constant there.
struct FunctionalActivation {
    std::string_view name;
    at::Tensor (*apply)(const at::Tensor&);
};

constexpr FunctionalActivation kFunctionalActivations[] = {
    {"hardsigmoid", [](auto& x) { return at::hardsigmoid(x); }},
    {"hardswish", [](auto& x) { return at::hardswish(x); }},
    {"leaky_relu", [](auto& x) { return at::leaky_relu(x); }},
    {"mish", [](auto& x) { return at::mish(x); }},
};

std::vector<std::string> functional_activations()
{
    std::vector<std::string> names{"celu", "elu",     "gelu", "hardtanh", "logsigmoid", "relu", "relu6",
                                   "selu", "sigmoid", "silu", "softplus", "softsign",   "tanh", "tanhshrink"};
    for (const auto& activation : kFunctionalActivations) names.emplace_back(activation.name);
    std::ranges::sort(names);
    return names;
}

at::Tensor activate(const std::string& name, const at::Tensor& x)
{
    if (name.empty()) return x;
    const auto own = std::ranges::find(kFunctionalActivations, name, &FunctionalActivation::name);
    return own == std::end(kFunctionalActivations) ? find_activation(name)->value(x, {}) : own->apply(x);
}

torch::nn::Conv3dOptions::padding_mode_t padding_mode_named(const std::string& name)
{
    if (name == "reflect") return torch::kReflect;
    if (name == "replicate") return torch::kReplicate;
    if (name == "circular") return torch::kCircular;
    return torch::kZeros;
}

/// Channels of the decoder: of its input, then of the results of its blocks in the order in which they run.
std::vector<std::int64_t> decoder_channels(const UNet3dOptions& options)
{
    std::vector<std::int64_t> channels(options.feature_map_channels.rbegin(), options.feature_map_channels.rend());
    if (options.num_conv_blocks > 1) channels.erase(channels.begin());
    return channels;
}

/// Number of channels that level `level` of the encoder, counted from fine to coarse, outputs.
std::int64_t skip_channels(const UNet3dOptions& options, std::int64_t level)
{
    return options.feature_map_channels[(level + 1) * options.num_conv_blocks - 1];
}

constexpr std::int64_t kUpsampleKernel = 3;  // kernel of the transposed convolutions, which double each extent

constexpr const char* kNormArguments = "normalization_args";

/// PhysicsNeMo passes them to its group norms, and ignores them for other norms.
void read_norm_arguments(const nlohmann::json& arguments, UNet3dOptions& options)
{
    const auto is_good = [](const std::string& name, const nlohmann::json& value) {
        if (name == "num_groups") return value.is_number_integer() && value.get<std::int64_t>() > 0;
        return name == "eps" ? value.is_number() : name == "affine" && value.is_boolean();
    };
    bool fits = arguments.is_object();
    if (fits) {
        for (const auto& [name, value] : arguments.items()) fits = fits && is_good(name, value);
    }
    if (!fits)
        OptionChecks("UNet").refuse("normalization_args is " + arguments.dump() +
                                    "; expected some of num_groups, eps and affine, as {\"num_groups\": 4}.");
    options.norm_groups = arguments.value("num_groups", options.norm_groups);
    options.norm_epsilon = arguments.value("eps", options.norm_epsilon);
    options.norm_affine = arguments.value("affine", options.norm_affine);
}

}  // namespace

const OptionTable<UNet3dOptions>& unet_3d_option_table()
{
    using O = UNet3dOptions;
    static const OptionTable<O> table(
        "UNet",
        {
            {"in_channels", &O::in_channels, "channels of the volume", {.least = 1}},
            {"out_channels", &O::out_channels, "channels of the result", {.least = 1}},
            {"kernel_size", &O::kernel_size, "cells that a convolution reads along each direction", {.least = 1}},
            {"stride", &O::stride, "step of the convolutions", {.least = 1}},
            {"model_depth", &O::model_depth, "grids, each half as fine as the one before", {.least = 1, .most = 16}},
            {"feature_map_channels",
             &O::feature_map_channels,
             "channels of each block of the encoder, fine to coarse",
             {.least = 1}},
            {"num_conv_blocks", &O::num_conv_blocks, "convolutions on each grid", {.least = 1}},
            {"conv_activation",
             &O::conv_activation,
             "activation behind each convolution",
             {.words = functional_activations()}},
            {"conv_transpose_activation",
             &O::conv_transpose_activation,
             "activation behind each transposed convolution",
             {.words = functional_activations()},
             {.none = "\"\""}},
            {"padding", &O::padding, "cells that a convolution adds at each end", {.least = 0}},
            {"padding_mode",
             &O::padding_mode,
             "what these cells hold",
             {.words = {"zeros", "reflect", "replicate", "circular"}}},
            {"pooling_type",
             &O::pooling_type,
             "how a grid becomes the next coarser one",
             {.words = {"MaxPool3d", "AvgPool3d"}}},
            {"pool_size", &O::pool_size, "cells along each direction that become one", {.least = 1}},
            {"normalization",
             &O::normalization,
             "norm behind each convolution",
             {.words = {"groupnorm", "batchnorm", "layernorm"}},
             {.none = "\"\""}},
            {"use_attn_gate", &O::use_attn_gate, "scales what the encoder hands to the decoder"},
            {"attn_decoder_feature_maps",
             &O::attn_decoder_feature_maps,
             "channels of the coarser grid at each gate",
             {.least = 1},
             {.none = "[]", .with = "use_attn_gate=true"}},
            {"attn_feature_map_channels",
             &O::attn_feature_map_channels,
             "channels that each gate scales",
             {.least = 1},
             {.none = "[]", .with = "use_attn_gate=true"}},
            {"attn_intermediate_channels",
             &O::attn_intermediate_channels,
             "channels within a gate",
             {.least = 1},
             {.none = "0", .with = "use_attn_gate=true"}},
            {"gradient_checkpointing", &O::gradient_checkpointing,
             "of PhysicsNeMo, without effect here: memory modes do that"},
        });
    return table;
}

void UNet3dOptions::validate() const
{
    unet_3d_option_table().check(*this);
    const OptionChecks checks("UNet");
    if (std::ssize(feature_map_channels) != model_depth * num_conv_blocks) {
        checks.refuse("feature_map_channels must have model_depth * num_conv_blocks = {} entries, and has {}.",
                      model_depth * num_conv_blocks, feature_map_channels.size());
    }
    const auto channels = decoder_channels(*this);
    if (model_depth > 1 && channels[0] != feature_map_channels.back()) {
        checks.refuse("the last two entries of feature_map_channels must be the same, and are {} and {}.", channels[0],
                      feature_map_channels.back());
    }
    if (normalization == "groupnorm") {
        auto normed = feature_map_channels;
        normed.insert(normed.end(), channels.begin(), channels.end());
        for (const auto count : normed) {
            if (count % norm_groups != 0)
                checks.refuse(
                    "normalization_args has num_groups {}, which must divide the channels of each block, and not {}.",
                    norm_groups, count);
        }
    }
    const auto num_levels = model_depth - 1;
    for (std::int64_t i = 0; i < num_levels; ++i) {
        const auto first = channels[1 + i * num_conv_blocks], skip = skip_channels(*this, num_levels - 1 - i);
        if (first != skip) {
            checks.refuse("with these feature_map_channels level {} of the decoder would take {} channels from the "
                          "encoder, which hands over {}.",
                          i, first, skip);
        }
    }
    if (!use_attn_gate) return;
    if (attn_intermediate_channels == 0) checks.refuse("use_attn_gate needs attn_intermediate_channels.");
    for (std::int64_t i = 0; i < num_levels; ++i) {
        const auto expect = [&](const char* name, const std::vector<std::int64_t>& given, std::int64_t wanted) {
            if (std::ssize(given) == num_levels && given[i] == wanted) return;
            checks.refuse("use_attn_gate needs {} with an entry a level of the decoder, model_depth - 1 in all, coarse "
                          "to fine; entry {} must be {}.",
                          name, i, wanted);
        };
        expect("attn_decoder_feature_maps", attn_decoder_feature_maps, channels[i * num_conv_blocks]);
        expect("attn_feature_map_channels", attn_feature_map_channels, skip_channels(*this, num_levels - 1 - i));
    }
}

UNet3dOptions unet_3d_options(const nlohmann::json& arguments)
{
    auto known = arguments;
    const auto of_norm = known.value(kNormArguments, nlohmann::json());
    known.erase(kNormArguments);
    auto options = unet_3d_option_table().read(known);
    if (!of_norm.is_null()) read_norm_arguments(of_norm, options);
    if (const auto norm = known.find("normalization"); norm != known.end() && norm->is_null())
        options.normalization.clear();
    return options;
}

nlohmann::json to_json(const UNet3dOptions& options)
{
    auto arguments = unet_3d_option_table().write(options);
    const UNet3dOptions defaults;
    if (options.norm_groups != defaults.norm_groups || options.norm_epsilon != defaults.norm_epsilon ||
        options.norm_affine != defaults.norm_affine)
        arguments[kNormArguments] = {
            {"num_groups", options.norm_groups}, {"eps", options.norm_epsilon}, {"affine", options.norm_affine}};
    return arguments;
}

SkipGateImpl::SkipGateImpl(std::int64_t decoder_channels, std::int64_t skip_channels, std::int64_t channels)
{
    const auto register_layers = [this](const char* name, std::int64_t in, std::int64_t out) {
        torch::nn::ModuleList layers(torch::nn::Conv3d(torch::nn::Conv3dOptions(in, out, 1)),
                                     torch::nn::LayerNorm(torch::nn::LayerNormOptions({out})));
        register_module(name, layers);
        return layers;
    };
    register_layers("W_g", decoder_channels, channels);
    register_layers("W_x", skip_channels, channels);
    bias_ = register_layers("psi", channels, 1)[1]->as<torch::nn::LayerNorm>()->bias;
}

torch::Tensor SkipGateImpl::forward(const torch::Tensor& skip)
{
    auto logit = bias_;
    for (const auto& parameter : parameters()) {
        if (!parameter.is_same(bias_)) logit = logit + 0 * parameter.sum();
    }
    return skip * torch::sigmoid(logit);
}

class UNet3dImpl::Block : public torch::nn::Module {
public:
    Block(const torch::nn::Conv3dOptions& conv, const UNet3dOptions& options, bool is_last)
        : activation_(is_last ? "" : options.conv_activation)
    {
        const auto normalization = is_last ? std::string() : options.normalization;
        conv_ = register_module("conv3d", torch::nn::Conv3d(conv));
        const auto channels = conv.out_channels();
        if (normalization == "groupnorm")
            group_ =
                register_module("norm", torch::nn::GroupNorm(torch::nn::GroupNormOptions(options.norm_groups, channels)
                                                                 .eps(options.norm_epsilon)
                                                                 .affine(options.norm_affine)));
        if (normalization == "batchnorm")
            batch_ = register_module("norm", torch::nn::BatchNorm3d(torch::nn::BatchNorm3dOptions(channels)));
        if (normalization == "layernorm")
            layer_ = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({channels})));
    }

    /// @param is_repeated   whether this is the second run of a recomputation, which must not update the running
    ///                      statistics of batch norms again
    torch::Tensor forward(const torch::Tensor& volume, bool is_repeated)
    {
        auto x = conv_(volume);
        if (batch_ && batch_->is_training() && x.numel() == x.size(1))
            throw InvalidInput(
                "UNet: the coarsest grid has one cell, of which batch norm has no deviation. Take fewer levels, finer "
                "grids or normalization=groupnorm.");
        if (group_) x = group_(x);
        if (layer_) x = layer_(x.movedim(1, -1)).movedim(-1, 1);
        if (batch_ && is_repeated) {
            x = torch::batch_norm(x, batch_->weight, batch_->bias, batch_->running_mean.clone(),
                                  batch_->running_var.clone(), batch_->is_training(), *batch_->options.momentum(),
                                  batch_->options.eps(), torch::globalContext().userEnabledCuDNN());
        } else if (batch_) {
            x = batch_(x);
        }
        return activate(activation_, x);
    }

private:
    torch::nn::Conv3d conv_{nullptr};
    torch::nn::GroupNorm group_{nullptr};  // at most one of the three norms is not null
    torch::nn::BatchNorm3d batch_{nullptr};
    torch::nn::LayerNorm layer_{nullptr};  // over the channels of each cell
    std::string activation_;
};

namespace {

/// Doubles each extent by a transposed convolution.
class UpsampleImpl : public torch::nn::Module {
public:
    UpsampleImpl(std::int64_t channels, std::string activation) : activation_(std::move(activation))
    {
        conv_ = register_module("conv3d_transpose", torch::nn::ConvTranspose3d(torch::nn::ConvTranspose3dOptions(
                                                                                   channels, channels, kUpsampleKernel)
                                                                                   .stride(2)
                                                                                   .padding(1)
                                                                                   .output_padding(1)));
    }

    torch::Tensor forward(const torch::Tensor& volume) { return activate(activation_, conv_(volume)); }

private:
    torch::nn::ConvTranspose3d conv_{nullptr};
    std::string activation_;
};

}  // namespace

/// The layers on one grid, in the encoder after the next finer grid, in the decoder after the next coarser one.
struct UNet3dImpl::Level {
    std::int64_t pool_size = 0;  ///< in the encoder, except on the finest grid; else 0
    bool pools_largest = true;
    std::shared_ptr<UpsampleImpl> raise;  ///< in the decoder
    SkipGate gate{nullptr};               ///< in the decoder, with attention gates
    std::vector<std::shared_ptr<Block>> blocks;

    /// @param inputs   features of the other grid; for the decoder also the skip connection
    torch::Tensor forward(const std::vector<torch::Tensor>& inputs, bool is_repeated) const
    {
        auto x = inputs[0];
        if (pool_size > 0) x = pools_largest ? torch::max_pool3d(x, pool_size) : torch::avg_pool3d(x, pool_size);
        if (raise) {
            x = raise->forward(x);
            x = torch::cat({x, gate ? gate.ptr()->forward(inputs[1]) : inputs[1]}, 1);
        }
        for (const auto& block : blocks) x = block->forward(x, is_repeated);
        return x;
    }
};

UNet3dImpl::UNet3dImpl(UNet3dOptions options) : options_(std::move(options))
{
    options_.validate();
    const auto& o = options_;
    torch::nn::ModuleList down, up;
    auto in = o.in_channels;
    for (std::int64_t i = 0; i < o.model_depth; ++i) {
        auto level = std::make_shared<Level>();
        if (i > 0) {
            level->pool_size = o.pool_size;
            level->pools_largest = o.pooling_type == "MaxPool3d";
            // The pooling, which has no parameters but counts in the numbering of names.
            down->push_back(std::make_shared<torch::nn::Module>());
        }
        for (std::int64_t k = 0; k < o.num_conv_blocks; ++k) {
            const auto out = o.feature_map_channels[i * o.num_conv_blocks + k];
            level->blocks.push_back(make_block(in, out));
            down->push_back(level->blocks.back());
            in = out;
        }
        down_.push_back(std::move(level));
    }
    const auto channels = decoder_channels(o);
    for (std::int64_t i = 0; i + 1 < o.model_depth; ++i) {
        auto level = std::make_shared<Level>();
        level->raise = std::make_shared<UpsampleImpl>(in, o.conv_transpose_activation);
        up->push_back(level->raise);
        in += skip_channels(o, o.model_depth - 2 - i);
        for (std::int64_t k = 0; k < o.num_conv_blocks; ++k) {
            const auto out = channels[1 + i * o.num_conv_blocks + k];
            level->blocks.push_back(make_block(in, out));
            up->push_back(level->blocks.back());
            in = out;
        }
        up_.push_back(std::move(level));
    }
    head_ = make_block(in, o.out_channels, /*is_last=*/true);
    up->push_back(head_);
    register_module("encoder", std::make_shared<torch::nn::Module>())->register_module("layers", down);
    register_module("decoder", std::make_shared<torch::nn::Module>())->register_module("layers", up);
    if (!o.use_attn_gate) return;
    torch::nn::ModuleList gates;
    for (std::size_t i = 0; i < up_.size(); ++i) {
        up_[i]->gate =
            SkipGate(o.attn_decoder_feature_maps[i], o.attn_feature_map_channels[i], o.attn_intermediate_channels);
        gates->push_back(up_[i]->gate);
    }
    register_module("attention_blocks", gates);
}

std::shared_ptr<UNet3dImpl::Block> UNet3dImpl::make_block(std::int64_t in, std::int64_t out, bool is_last) const
{
    const auto conv = torch::nn::Conv3dOptions(in, out, options_.kernel_size)
                          .stride(options_.stride)
                          .padding(options_.padding)
                          .padding_mode(padding_mode_named(options_.padding_mode));
    return std::make_shared<Block>(conv, options_, is_last);
}

void UNet3dImpl::set_memory(MemoryMode mode)
{
    memory_ = unless_streamed("UNet", mode);
}

torch::Tensor UNet3dImpl::run(const std::shared_ptr<Level>& level, const std::vector<torch::Tensor>& inputs) const
{
    if (memory_ == MemoryMode::Stored) return level->forward(inputs, false);
    return checkpoint(
        [level, has_run = std::make_shared<bool>(false)](const std::vector<torch::Tensor>& given)
            -> std::vector<torch::Tensor> { return {level->forward(given, std::exchange(*has_run, true))}; },
        inputs)[0];
}

void UNet3dImpl::require_shape(const torch::Tensor& volume) const
{
    const auto& o = options_;
    bool fits = volume.dim() == 5 && volume.size(1) == o.in_channels;
    for (std::int64_t dim = 2; fits && dim < 5; ++dim) {
        const auto convolved = [&](std::int64_t extent) {
            for (std::int64_t k = 0; k < o.num_conv_blocks; ++k) {
                const auto room = extent + 2 * o.padding - o.kernel_size;
                extent = room < 0 ? 0 : room / o.stride + 1;
            }
            return extent;
        };
        std::vector<std::int64_t> extents{convolved(volume.size(dim))};
        for (std::int64_t i = 1; i < o.model_depth; ++i) extents.push_back(convolved(extents.back() / o.pool_size));
        auto extent = extents.back();
        for (std::int64_t i = o.model_depth - 2; fits && i >= 0; --i) {
            fits = 2 * extent == extents[i];
            extent = convolved(2 * extent);
        }
        fits = fits && extent > 0;
    }
    if (fits) return;
    const bool halves = o.stride == 1 && 2 * o.padding == o.kernel_size - 1 && o.pool_size == 2;
    OptionChecks("UNet").refuse(
        "the volume must be (batch, {}, X, Y, Z), and has the shape {}. {}", o.in_channels, c10::str(volume.sizes()),
        halves ? fmt::format("X, Y and Z must be multiples of {}.", std::int64_t{1} << (o.model_depth - 1))
               : "On the way back each grid must be twice as fine as the one before: with a stride of 1, a padding of "
                 "half the kernel and a pool_size of 2 it is.");
}

torch::Tensor UNet3dImpl::forward(const torch::Tensor& volume)
{
    require_shape(volume);
    std::vector<torch::Tensor> skips;
    auto x = volume;
    for (const auto& level : down_) {
        x = run(level, {x});
        skips.push_back(x);
    }
    skips.pop_back();
    for (const auto& level : up_) {
        x = run(level, {x, skips.back()});
        skips.pop_back();
    }
    return head_->forward(x, false);
}

}  // namespace meshard
