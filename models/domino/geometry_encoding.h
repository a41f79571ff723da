// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/domino/domino_options.h"
#include "models/grids/unet_3d.h"
#include "ops/search/point_search.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace meshard {

/// Ten convolutions on four grids, from fine to coarse by maximum pooling and back by repetition (DoMINO's processor
/// `conv`). Grid sizes must be multiples of 8.
class ConvProcessorImpl : public torch::nn::Module {
public:
    ConvProcessorImpl(std::int64_t in, std::int64_t out, std::int64_t filters, const std::string& act);

    /// (B, in, X, Y, Z) to (B, out, X, Y, Z)
    torch::Tensor forward(const torch::Tensor& x);

private:
    std::vector<torch::nn::Conv3d> convs_;  // conv1, conv2, conv3, conv3_1, conv4, ..., conv8
    torch::nn::AnyModule act_;
};
TORCH_MODULE(ConvProcessor);

/// DoMINO's U-Nets: three grids of `filters`, 2 `filters` and 4 `filters` channels, one convolution each; `gates` adds
/// layer norms and attention gates.
UNet3d domino_unet(std::int64_t in, std::int64_t out, std::int64_t filters, const std::string& act, bool gates);

/// Encodes a geometry on a grid around it: the points of the geometry around each cell within several radii, and the
/// distance to the geometry, are each processed on the grid to one channel.
class GeometryEncodingImpl : public torch::nn::Module {
public:
    /// @param is_volume   whether the grid is that of the volume's box, else that of the surface's
    GeometryEncodingImpl(const DominoOptions& options, bool is_volume);

    /// The grid may be cut along X anywhere; at multiples of 8 poolings need no message.
    ///
    /// @param geometry   (B, Ng, 3), in the grid's frame; equal on every rank
    /// @param grid       (B, X, Y, Z, 3): positions of the cells
    /// @param sdf        (B, X, Y, Z): signed distance, positive outside
    /// @return           (B, c, X, Y, Z): one channel for each radius, then one for the distance, depending on the type
    /// of encoding
    torch::Tensor forward(const torch::Tensor& geometry, const torch::Tensor& grid, const torch::Tensor& sdf);

private:
    using Processor = std::function<torch::Tensor(const torch::Tensor&)>;
    /// Makes a processor below `parent`, under `name`.
    Processor make_processor(torch::nn::Module& parent, const std::string& name, std::int64_t in);
    torch::Tensor distance_channels(const torch::Tensor& sdf) const;

    GeometryOptions options_;
    std::string type_;
    std::int64_t hops_;
    std::vector<double> sdf_scales_;
    std::vector<RadiusLimit> limits_;
    std::vector<Processor> processors_;
    Processor sdf_processor_;
    torch::nn::ModuleList conv_out_, processor_out_;
    torch::nn::Conv3d sdf_out_{nullptr};
    UNet3d combined_{nullptr};
};
TORCH_MODULE(GeometryEncoding);

}  // namespace meshard
