// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>

#include <cstdint>
#include <string>

namespace meshard {

template <class Options>
class OptionTable;

/// Constructor arguments of a U-Net for images. Meanings and bounds: `unet_option_table`.
struct UNetOptions {
    std::int64_t in_channels = 0;    ///< must be set
    std::int64_t out_channels = 0;   ///< must be set
    std::int64_t num_channels = 32;  ///< on the finest level; doubled on each coarser one
    std::int64_t depth = 3;          ///< number of times that the grid is halved
    std::int64_t num_groups = 8;     ///< groups of the group norms; must divide num_channels
    std::string act = "gelu";

    /// @throws InvalidInput naming the option, its value and what is allowed.
    void validate() const;
};

/// Declares all options.
const OptionTable<UNetOptions>& unet_option_table();
UNetOptions unet_options(const nlohmann::json& arguments);

/// A U-Net (Ronneberger, Fischer, Brox 2015) from image to image: two convolutions on each of `depth` + 1 grids, from
/// fine to coarse and back. On the way back the features of a grid from the way down are concatenated (skip
/// connections). Images may be cut along height, width or both; convolutions exchange ghosts across the cut.
class UNetImpl : public torch::nn::Module {
public:
    /// Initial values are LibTorch's.
    /// @throws InvalidInput as `UNetOptions::validate`.
    explicit UNetImpl(UNetOptions options);

    /// (B, in_channels, height, width) to (B, out_channels, height, width); height and width multiples of 2^depth.
    /// @throws InvalidInput for another shape.
    torch::Tensor forward(const torch::Tensor& image);

private:
    UNetOptions options_;
    torch::nn::ModuleList down_, up_;  // two convolutions each, fine to coarse
    torch::nn::Conv2d head_{nullptr};
};
TORCH_MODULE(UNet);

}  // namespace meshard
