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

/// What every layer of a GeoTransolver sees besides its points: slice tokens of the surroundings, the geometry and the global values, side by
/// side; and what each point is told of its surroundings.
class ContextBuilderImpl : public torch::nn::Module {
public:
    ContextBuilderImpl(const GeoTransolverOptions& options, const SharedNoise& noise);

    struct Result {
        torch::Tensor context;                      ///< (B, H, S, context_dim); undefined if the model takes no context
        std::vector<torch::Tensor> local_features;  ///< of each stream (B, N_i, scales * n_hidden_local); empty without
    };

    /// @param positions   of each stream (B, N_i, 3); empty without local features
    Result forward(const std::vector<torch::Tensor>& positions, const torch::Tensor& geometry, const torch::Tensor& global_embedding);

private:
    torch::nn::ModuleList local_extractors_;        // one a stream; empty without local features
    ContextProjector geometry_tokenizer_{nullptr};  // null without geometry_dim
    ContextProjector global_tokenizer_{nullptr};    // null without global_dim
};
TORCH_MODULE(ContextBuilder);

/// One layer of a GeoTransolver: GALE or GALE_FA and MLP, each behind a layer norm and added to its input.
class GeoTransolverBlockImpl : public torch::nn::Module {
public:
    GeoTransolverBlockImpl(const GeoTransolverOptions& options, const SharedNoise& noise);

    /// (B, N, E) to (B, N, E), E = GeoTransolverOptions::num_channels
    torch::Tensor forward(torch::Tensor x, const torch::Tensor& context);

    /// How the fused operators do the same.
    BlockFusion fusion(const torch::Tensor& context) const;

private:
    torch::nn::LayerNorm ln_1_{nullptr};
    Gale gale_{nullptr};  // one of the two
    GaleFa gale_fa_{nullptr};
    torch::nn::Sequential ln_mlp1_{nullptr};
    ConcreteDropout attn_dropout_{nullptr};  // null without concrete_dropout
    ConcreteDropout ffn_dropout_{nullptr};
};
TORCH_MODULE(GeoTransolverBlock);

/// What a GeoTransolver takes. On a grid, (B, N, ...) may also be (B, extents, ...).
struct GeoTransolverInputs {
    std::vector<torch::Tensor> local_embedding;  ///< of each stream (B, N_i, functional_dim)
    torch::Tensor global_embedding;              ///< (B, N_g, global_dim), undefined if the model takes none
    torch::Tensor geometry;                      ///< (B, N_geo, geometry_dim), undefined if the model takes none
    std::vector<torch::Tensor> local_positions;  ///< of each stream (B, N_i, 3); used by a model with local features only
};

/// GeoTransolver: a Transolver of one or more streams of points, whose layers also attend to tokens of a geometry and of global values, and
/// whose points may be told of the geometry around them. All streams share the layers' weights. Parameters have PhysicsNeMo's names and shapes.
class GeoTransolverImpl : public torch::nn::Module, public HasMemoryModes, public HasBlockForms, public DrawsNoise {
public:
    /// Initial values as LibTorch makes them, drawn from its default generator in the reference's order.
    /// @throws InvalidInput as `GeoTransolverOptions::validate`.
    explicit GeoTransolverImpl(GeoTransolverOptions options);

    /// @return   of each stream (B, N_i, out_dim), shaped as its input
    /// @throws InvalidInput on inputs that are missing, too many, or do not fit the options.
    std::vector<torch::Tensor> forward(const GeoTransolverInputs& inputs);

    /// Where Transolver++'s slices take their noise from (an empty function: from a counter of the points' ids), and when; by default while training.
    void set_noise(UniformNoise noise) { noise_->given = std::move(noise); }
    void set_noise(NoiseWhen when) { noise_->when = when; }

    void seed_noise(std::uint64_t seed) override { noise_->rows = RowNoise(seed); }

    /// What is kept of each point between forward and backward. @throws InvalidInput for Streamed
    void set_memory(MemoryMode mode) override;

    std::vector<BlockChoice> block_forms(const torch::Tensor& points) override;

    const GeoTransolverOptions& options() const { return options_; }

private:
    std::vector<torch::Tensor> local_positions(const GeoTransolverInputs& inputs) const;  // empty without local features

    GeoTransolverOptions options_;
    MemoryMode memory_ = MemoryMode::Stored;
    SharedNoise noise_ = make_noise();
    ContextBuilder context_builder_{nullptr};
    torch::nn::ModuleList preprocess_;  // one a stream
    torch::nn::ModuleList blocks_;
    torch::nn::ModuleList heads_;  // one a stream
};
TORCH_MODULE(GeoTransolver);

}  // namespace meshard
