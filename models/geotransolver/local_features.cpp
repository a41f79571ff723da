// SPDX-License-Identifier: Apache-2.0
#include "models/geotransolver/local_features.h"

#include "ops/neighbors/ball_query.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

namespace meshard {

NeighborhoodMlpImpl::NeighborhoodMlpImpl(std::int64_t num_neighbors, std::int64_t num_channels)
{
    layers_->push_back(torch::nn::Linear(3 * num_neighbors, num_channels));
    layers_->push_back(torch::nn::GELU());
    layers_->push_back(torch::nn::Linear(num_channels, num_channels / 2));
    layers_->push_back(torch::nn::GELU());
    layers_->push_back(torch::nn::Linear(num_channels / 2, num_channels));
    register_module("mlp", std::make_shared<torch::nn::Module>())->register_module("layers", layers_);
}

torch::Tensor NeighborhoodMlpImpl::forward(const torch::Tensor& neighbors)
{
    return torch::tanh(layers_->forward(neighbors));
}

LocalFeaturesImpl::LocalFeaturesImpl(LocalFeaturesOptions options) : scales_(std::move(options.scales))
{
    // Layers are made in the reference's order, since each draws random numbers.
    for (const auto& scale : scales_)
        processors_->push_back(NeighborhoodMlp(scale.max_neighbors, options.num_channels));
    for (std::size_t s = 0; s < scales_.size(); ++s)
        tokenizers_->push_back(ContextProjector(options.slices, options.concrete_rate));
    register_module("processors", processors_);
    register_module("tokenizers", tokenizers_);
}

LocalFeaturesImpl::Result LocalFeaturesImpl::forward(const torch::Tensor& positions, const torch::Tensor& geometry)
{
    const auto around_geometry = ball_query(positions, geometry, scales_, NeighborOrder::Grid);  // (B, N_geo, 3 K) each
    const auto around_points = ball_query(geometry, positions, scales_, NeighborOrder::Grid);    // (B, N, 3 K) each
    Result result;
    std::vector<torch::Tensor> features;
    for (std::size_t s = 0; s < scales_.size(); ++s) {
        auto* processor = processors_[s]->as<NeighborhoodMlp>();
        result.tokens.push_back(
            tokenizers_[s]->as<ContextProjector>()->forward(processor->forward(around_geometry[s])));
        features.push_back(processor->forward(around_points[s]));
    }
    result.features = torch::cat(features, -1);
    return result;
}

}  // namespace meshard
