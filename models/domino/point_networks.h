// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/domino/domino_options.h"
#include "ops/search/point_search.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <string>
#include <vector>

namespace meshard {

/// An MLP on the last dimension; its inputs may be followed by their sines and cosines at the fixed frequencies
/// exp(linspace(0, pi, modes)): for each frequency the sines of all inputs, then in the same order the cosines. No
/// activation after the last layer.
///
/// Parameters `mlp.layers.{0,2,...}`, buffer `freqs` with Fourier features.
class FourierMlpImpl : public torch::nn::Module {
public:
    /// @param widths   output widths of the layers
    FourierMlpImpl(std::int64_t in_dim, const std::vector<std::int64_t>& widths, bool fourier_features,
                   std::int64_t num_modes, const std::string& act);

    /// (..., in_dim) to (..., last of widths)
    torch::Tensor forward(torch::Tensor x);

private:
    torch::Tensor frequencies_;  // undefined without Fourier features
    torch::nn::Sequential layers_;
};
TORCH_MODULE(FourierMlp);

/// Makes a network of three layers of one width.
FourierMlp point_network(std::int64_t in_dim, const PointNetworkOptions& options);

/// Computes a point's features from the encodings of the grid cells around it: for each radius an MLP on the encodings
/// of the first cells found, multiplied by one half, channel by channel. As in the reference, cell 0 stands for "no
/// cell".
class LocalEncodingImpl : public torch::nn::Module {
public:
    LocalEncodingImpl(const BallQueries& queries, std::int64_t encoding_channels, const std::string& act);

    /// @param encoding   (B, c, cells), equal on every rank
    /// @param cells      (B, cells, 3): their positions, equal on every rank
    /// @param points     (B, N, 3), plain or cut along N
    /// @return           (B, N, sum of the numbers of neighbours)
    torch::Tensor forward(const torch::Tensor& encoding, const torch::Tensor& cells, const torch::Tensor& points);

private:
    std::vector<RadiusLimit> limits_;
    torch::nn::ModuleList encodings_;
};
TORCH_MODULE(LocalEncoding);

/// Five layers from the features of a position to one channel of the solution there.
class AggregationImpl : public torch::nn::Module {
public:
    AggregationImpl(std::int64_t in_dim, std::int64_t width, const std::string& act);

    /// (..., in_dim) to (..., 1)
    torch::Tensor forward(const torch::Tensor& x) { return layers_->forward(x); }

private:
    torch::nn::Sequential layers_;
};
TORCH_MODULE(Aggregation);

}  // namespace meshard
