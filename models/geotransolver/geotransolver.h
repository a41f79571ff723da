// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/geotransolver/context_projector.h"
#include "models/geotransolver/gale.h"
#include "models/geotransolver/geotransolver_options.h"
#include "models/geotransolver/local_features.h"
#include "models/layers/block_form.h"
#include "models/layers/concrete_dropout.h"
#include "models/layers/memory_mode.h"
#include "models/layers/random_draws.h"

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/normalization.h>

#include <vector>

namespace meshard {

/// Computes the context of all layers of a GeoTransolver, the concatenated slice tokens of neighbourhoods, geometry and
/// global values; and the local features of each point.
class ContextBuilderImpl : public torch::nn::Module {
public:
    ContextBuilderImpl(const GeoTransolverOptions& options, const SharedNoise& noise);

    struct Result {
        torch::Tensor context;  ///< (B, H, S, context_dim); undefined if the model has no context
        /// For each stream (B, N_i, scales * n_hidden_local); empty without local features.
        std::vector<torch::Tensor> local_features;
    };

    /// @param positions   for each stream (B, N_i, 3); empty without local features
    Result forward(const std::vector<torch::Tensor>& positions, const torch::Tensor& geometry,
                   const torch::Tensor& global_embedding);

private:
    torch::nn::ModuleList local_extractors_;        // one for each stream; empty without local features
    ContextProjector geometry_tokenizer_{nullptr};  // null without geometry_dim
    ContextProjector global_tokenizer_{nullptr};    // null without global_dim
};
TORCH_MODULE(ContextBuilder);

/// One layer of a GeoTransolver: GALE or GALE_FA, and MLP, each applied after a layer norm and added to its input.
class GeoTransolverBlockImpl : public torch::nn::Module {
public:
    GeoTransolverBlockImpl(const GeoTransolverOptions& options, const SharedNoise& noise);

    /// (B, N, E) to (B, N, E), E = GeoTransolverOptions::num_channels
    torch::Tensor forward(torch::Tensor x, const torch::Tensor& context);

    /// The block's weights for the fused operators, or the reason why they cannot compute it.
    BlockFusion fusion(const torch::Tensor& context) const;

private:
    torch::nn::LayerNorm ln_1_{nullptr};
    Gale gale_{nullptr};  // one of gale_ and gale_fa_ is null
    GaleFa gale_fa_{nullptr};
    torch::nn::Sequential ln_mlp1_{nullptr};
    ConcreteDropout attn_dropout_{nullptr};  // null without concrete_dropout
    ConcreteDropout ffn_dropout_{nullptr};
};
TORCH_MODULE(GeoTransolverBlock);

/// The inputs of a GeoTransolver. On a grid, (B, N, ...) may also be (B, extents, ...).
struct GeoTransolverInputs {
    std::vector<torch::Tensor> local_embedding;  ///< for each stream (B, N_i, functional_dim)
    torch::Tensor global_embedding;              ///< (B, N_g, global_dim), undefined if the model has none
    torch::Tensor geometry;                      ///< (B, N_geo, geometry_dim), undefined if the model has none
    /// (B, N_i, 3) for each stream; used only by a model with local features.
    std::vector<torch::Tensor> local_positions;
};

/// GeoTransolver: a Transolver for one or more streams of points. Its layers also attend to tokens of a geometry and of
/// global values, and its points may have features of the geometry around them. All streams share the layers' weights.
/// Parameters have PhysicsNeMo's names and shapes.
class GeoTransolverImpl : public torch::nn::Module, public HasMemoryModes, public HasBlockForms, public DrawsNoise {
public:
    /// Initial values are LibTorch's, drawn from its default generator in the reference's order.
    /// @throws InvalidInput as `GeoTransolverOptions::validate`.
    explicit GeoTransolverImpl(GeoTransolverOptions options);

    /// @return   for each stream (B, N_i, out_dim), or (B, extents, out_dim) if its input has the grid's extents
    /// @throws InvalidInput for inputs that are missing, too many, or do not fit the options.
    std::vector<torch::Tensor> forward(const GeoTransolverInputs& inputs);

    /// Sets the source of Transolver++'s noise (an empty function: random numbers that depend on the points' ids), and
    /// when it is added; by default in training.
    void set_noise(UniformNoise noise) { noise_->given = std::move(noise); }
    void set_noise(NoiseWhen when) { noise_->when = when; }

    void seed_noise(std::uint64_t seed) override { noise_->rows.reseed(seed); }

    /// Sets what training stores for each point between forward and backward. @throws InvalidInput for Streamed
    void set_memory(MemoryMode mode) override;

    std::vector<BlockChoice> block_forms(const torch::Tensor& points) override;

    const GeoTransolverOptions& options() const { return options_; }

private:
    std::vector<torch::Tensor>
    local_positions(const GeoTransolverInputs& inputs) const;  // empty without local features

    GeoTransolverOptions options_;
    MemoryMode memory_ = MemoryMode::Stored;
    SharedNoise noise_ = make_noise();
    ContextBuilder context_builder_{nullptr};
    torch::nn::ModuleList preprocess_;  // one for each stream
    torch::nn::ModuleList blocks_;
    torch::nn::ModuleList heads_;  // one for each stream
};
TORCH_MODULE(GeoTransolver);

}  // namespace meshard
