// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/normalization.h>

#include "models/concrete_dropout.h"
#include "models/context_projector.h"
#include "models/gale.h"
#include "models/geotransolver_options.h"

namespace meshard {

/// What every layer of a GeoTransolver sees besides its points: slice tokens of the geometry and of the global values, side by side.
class ContextBuilderImpl : public torch::nn::Module {
public:
    ContextBuilderImpl(const GeoTransolverOptions& options, const SharedNoise& noise);

    /// @return   (B, H, S, context_dim); undefined if the model takes neither
    torch::Tensor forward(const torch::Tensor& geometry, const torch::Tensor& global_embedding);

private:
    ContextProjector geometry_tokenizer_{nullptr};   // null without geometry_dim
    ContextProjector global_tokenizer_{nullptr};     // null without global_dim
};
TORCH_MODULE(ContextBuilder);

/// One layer of a GeoTransolver: GALE or GALE_FA and MLP, each behind a layer norm and added to its input.
class GeoTransolverBlockImpl : public torch::nn::Module {
public:
    GeoTransolverBlockImpl(const GeoTransolverOptions& options, const SharedNoise& noise);

    /// (B, N, C) to (B, N, C)
    torch::Tensor forward(torch::Tensor x, const torch::Tensor& context);

private:
    torch::nn::LayerNorm ln_1_{nullptr};
    Gale gale_{nullptr};                             // one of the two
    GaleFa gale_fa_{nullptr};
    torch::nn::Sequential ln_mlp1_{nullptr};
    ConcreteDropout attn_dropout_{nullptr};          // null without concrete_dropout
    ConcreteDropout ffn_dropout_{nullptr};
};
TORCH_MODULE(GeoTransolverBlock);

/// What a GeoTransolver takes. On a grid, (B, N, ...) may also be (B, extents, ...).
struct GeoTransolverInputs {
    std::vector<torch::Tensor> local_embedding;   ///< of each stream (B, N_i, functional_dim)
    torch::Tensor global_embedding;               ///< (B, N_g, global_dim), undefined if the model takes none
    torch::Tensor geometry;                       ///< (B, N_geo, geometry_dim), undefined if the model takes none
};

/// GeoTransolver without local features: a Transolver of one or more streams of points, whose layers also attend to tokens of a geometry
/// and of global values. All streams share the layers' weights. Parameters have PhysicsNeMo's names and shapes.
class GeoTransolverImpl : public torch::nn::Module {
public:
    /// Initial values as LibTorch makes them, drawn from its default generator in the reference's order.
    /// @throws InvalidInput as `GeoTransolverOptions::validate`.
    explicit GeoTransolverImpl(GeoTransolverOptions options);

    /// @return   of each stream (B, N_i, out_dim), shaped as its input
    /// @throws InvalidInput on inputs that are missing, too many, or do not fit the options.
    std::vector<torch::Tensor> forward(const GeoTransolverInputs& inputs);

    /// Where Transolver++'s slices take their noise from; an undefined function brings the default back: noise while training, none else.
    void set_noise(UniformNoise noise) { *noise_ = std::move(noise); }

    const GeoTransolverOptions& options() const { return options_; }

private:
    GeoTransolverOptions options_;
    SharedNoise noise_ = std::make_shared<UniformNoise>();
    ContextBuilder context_builder_{nullptr};
    torch::nn::ModuleList preprocess_;               // one a stream
    torch::nn::ModuleList blocks_;
    torch::nn::ModuleList heads_;                    // one a stream
};
TORCH_MODULE(GeoTransolver);

}  // namespace meshard
