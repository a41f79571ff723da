// SPDX-License-Identifier: Apache-2.0
#include "models/domino/point_networks.h"

#include "models/layers/activation.h"
#include "ops/neighbors/ball_query.h"

#include <torch/nn/modules/linear.h>

#include <numbers>

namespace meshard {
namespace {

// Width of the first layer; the key geometry_local.base_layer has no effect in the reference.
constexpr std::int64_t kLocalWidth = 512;
constexpr double kLocalFactor = 0.5;

/// Linear layers of these widths with activations in between.
torch::nn::Sequential dense_layers(std::int64_t in_dim, const std::vector<std::int64_t>& widths, const std::string& act)
{
    torch::nn::Sequential layers;
    for (std::size_t i = 0; i < widths.size(); ++i) {
        if (i > 0) layers->push_back(Activation(act));
        layers->push_back(torch::nn::Linear(i == 0 ? in_dim : widths[i - 1], widths[i]));
    }
    return layers;
}

}  // namespace

FourierMlpImpl::FourierMlpImpl(std::int64_t in_dim, const std::vector<std::int64_t>& widths, bool fourier_features,
                               std::int64_t num_modes, const std::string& act)
{
    if (fourier_features) {
        frequencies_ = register_buffer("freqs", torch::exp(torch::linspace(0, std::numbers::pi, num_modes)));
        in_dim *= 1 + 2 * num_modes;
    }
    layers_ = dense_layers(in_dim, widths, act);
    register_module("mlp", std::make_shared<torch::nn::Module>())->register_module("layers", layers_);
}

torch::Tensor FourierMlpImpl::forward(torch::Tensor x)
{
    if (frequencies_.defined()) {
        const auto angles = (x.unsqueeze(-2) * frequencies_.unsqueeze(-1)).flatten(-2);  // (..., modes * in)
        x = torch::cat({x, angles.sin(), angles.cos()}, -1);
    }
    return layers_->forward(x);
}

FourierMlp point_network(std::int64_t in_dim, const PointNetworkOptions& options)
{
    return FourierMlp(in_dim, std::vector<std::int64_t>(3, options.width), options.fourier_features, options.num_modes,
                      options.activation);
}

LocalEncodingImpl::LocalEncodingImpl(const BallQueries& queries, std::int64_t encoding_channels, const std::string& act)
{
    for (std::size_t s = 0; s < queries.radii.size(); ++s) {
        const auto slots = queries.neighbors[s];
        limits_.push_back({queries.radii[s], slots});
        const auto encoding = std::make_shared<torch::nn::Module>();
        const auto conv = encoding->register_module("local_point_conv", std::make_shared<torch::nn::Module>());
        conv->register_module("layers", dense_layers(encoding_channels * slots, {kLocalWidth, slots}, act));
        encodings_->push_back(encoding);
    }
    register_module("local_geo_encodings", encodings_);
}

torch::Tensor LocalEncodingImpl::forward(const torch::Tensor& encoding, const torch::Tensor& cells,
                                         const torch::Tensor& points)
{
    const auto found = ball_indices(cells, points, limits_, NeighborOrder::Grid);  // (B, N, K) each
    const auto of_cells = (kLocalFactor * encoding).transpose(1, 2);               // (B, cells, c)
    std::vector<torch::Tensor> results;
    for (std::size_t s = 0; s < limits_.size(); ++s) {
        std::vector<torch::Tensor> samples;
        for (std::int64_t b = 0; b < points.size(0); ++b) {
            const auto ids = found[s].select(0, b);                // (N, K)
            const auto seen = of_cells.select(0, b).index({ids});  // (N, K, c)
            samples.push_back(
                (seen * ids.ne(0).unsqueeze(-1).to(seen.scalar_type())).transpose(1, 2).flatten(1));  // (N, c * K)
        }
        const auto conv = encodings_[s]->named_modules()["local_point_conv.layers"];
        results.push_back(conv->as<torch::nn::SequentialImpl>()->forward(torch::stack(samples)));
    }
    return torch::cat(results, -1);
}

AggregationImpl::AggregationImpl(std::int64_t in_dim, std::int64_t width, const std::string& act)
{
    layers_ = register_module("layers", dense_layers(in_dim, {width, width, width, width, 1}, act));
}

}  // namespace meshard
