// SPDX-License-Identifier: Apache-2.0
#include "models/grids/unet.h"

#include "models/layers/activation.h"
#include "models/layers/option_table.h"

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/normalization.h>

namespace meshard {
namespace {

/// Two convolutions, each with group norm and activation.
torch::nn::Sequential two_convolutions(std::int64_t in, std::int64_t out, const UNetOptions& options)
{
    torch::nn::Sequential layers;
    for (const auto channels : {in, out}) {
        layers->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, out, 3).padding(1)));
        layers->push_back(torch::nn::GroupNorm(torch::nn::GroupNormOptions(options.num_groups, out)));
        layers->push_back(Activation(options.act));
    }
    return layers;
}

}  // namespace

const OptionTable<UNetOptions>& unet_option_table()
{
    using O = UNetOptions;
    static const OptionTable<O> table(
        "UNet2d", {
                      {"in_channels", &O::in_channels, "channels of the image", {.least = 1}},
                      {"out_channels", &O::out_channels, "channels of the result", {.least = 1}},
                      {"num_channels",
                       &O::num_channels,
                       "channels of the finest grid; twice as many on each coarser one",
                       {.least = 1}},
                      {"depth", &O::depth, "number of times that the grid is halved", {.least = 0, .most = 16}},
                      {"num_groups", &O::num_groups, "groups of the norms; divides num_channels", {.least = 1}},
                      {"act", &O::act, "activation behind each convolution"},
                  });
    return table;
}

UNetOptions unet_options(const nlohmann::json& arguments)
{
    return unet_option_table().read(arguments);
}

void UNetOptions::validate() const
{
    unet_option_table().check(*this);
    OptionChecks("UNet2d").multiple("num_channels", num_channels, "num_groups", num_groups);
}

UNetImpl::UNetImpl(UNetOptions options) : options_(std::move(options))
{
    options_.validate();
    const auto channels = [&](std::int64_t level) { return options_.num_channels << level; };
    for (std::int64_t level = 0; level <= options_.depth; ++level) {
        down_->push_back(
            two_convolutions(level == 0 ? options_.in_channels : channels(level - 1), channels(level), options_));
    }
    for (std::int64_t level = 0; level < options_.depth; ++level)
        up_->push_back(two_convolutions(channels(level) + channels(level + 1), channels(level), options_));
    register_module("down", down_);
    register_module("up", up_);
    head_ = register_module(
        "head", torch::nn::Conv2d(torch::nn::Conv2dOptions(options_.num_channels, options_.out_channels, 1)));
}

torch::Tensor UNetImpl::forward(const torch::Tensor& image)
{
    const auto multiple = std::int64_t{1} << options_.depth;
    if (image.dim() != 4 || image.size(1) != options_.in_channels || image.size(2) % multiple != 0 ||
        image.size(3) % multiple != 0) {
        OptionChecks("UNet2d").refuse(
            "the image must be (batch, {}, height, width) with multiples of {}, and has the shape {}.",
            options_.in_channels, multiple, c10::str(image.sizes()));
    }
    std::vector<torch::Tensor> levels;
    auto x = image;
    for (std::int64_t level = 0; level <= options_.depth; ++level) {
        if (level > 0) x = torch::max_pool2d(x, 2);
        x = down_[level]->as<torch::nn::Sequential>()->forward(x);
        levels.push_back(x);
    }
    for (auto level = options_.depth - 1; level >= 0; --level) {
        x = torch::upsample_nearest2d(x, levels[level].sizes().slice(2));
        x = up_[level]->as<torch::nn::Sequential>()->forward(torch::cat({levels[level], x}, 1));
    }
    return head_(x);
}

}  // namespace meshard
