// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/geotransolver/context_projector.h"
#include "ops/search/point_search.h"

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <vector>

namespace meshard {

/// Features of a neighbourhood from the coordinates of its points: tanh of an MLP on x, y and z of K neighbours, padded
/// with zeros.
class NeighborhoodMlpImpl : public torch::nn::Module {
public:
    NeighborhoodMlpImpl(std::int64_t num_neighbors, std::int64_t num_channels);

    /// (B, M, 3 K) to (B, M, num_channels)
    torch::Tensor forward(const torch::Tensor& neighbors);

private:
    torch::nn::Sequential layers_;  // registered under the name mlp.layers
};
TORCH_MODULE(NeighborhoodMlp);

struct LocalFeaturesOptions {
    std::vector<RadiusLimit> scales = {};
    std::int64_t num_channels = 0;  ///< number for each scale
    SliceOptions slices;            ///< options of the tokenizers; `dim` is num_channels
    double concrete_rate = -1;      ///< as in ContextProjector
};

/// GeoTransolver's neighbourhood features of one stream, within several radii (scales): of the stream's points around
/// each point of the geometry, and of the geometry's points around each point of the stream. Both directions share the
/// weights of a scale.
///
/// Neighbours are those of the reference, on any number of ranks: the first K in the order of a grid
/// (ops/search/grid_walk.h), not the nearest.
class LocalFeaturesImpl : public torch::nn::Module {
public:
    explicit LocalFeaturesImpl(LocalFeaturesOptions options);

    struct Result {
        /// For each scale (B, H, S, D): tokens of the geometry's points, from the stream's points around them.
        std::vector<torch::Tensor> tokens;
        /// (B, N, scales * num_channels): features of the stream's points, from the geometry's points around them.
        torch::Tensor features;
    };

    /// @param positions   (B, N, 3)
    /// @param geometry    (B, N_geo, 3)
    Result forward(const torch::Tensor& positions, const torch::Tensor& geometry);

private:
    std::vector<RadiusLimit> scales_;
    torch::nn::ModuleList processors_;  // one for each scale
    torch::nn::ModuleList tokenizers_;
};
TORCH_MODULE(LocalFeatures);

}  // namespace meshard
