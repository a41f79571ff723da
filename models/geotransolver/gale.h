// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/layers/concrete_dropout.h"
#include "models/layers/random_draws.h"
#include "models/transolver/flare_attention.h"
#include "models/transolver/slice_projection.h"

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// GeoTransolver's attention to its context: a layer's own states attend to the context's slices, and the result is
/// mixed with the layer's self-attention. The parameters (cross_q, cross_k, cross_v, state_mixing or concat_project)
/// are registered in the module `owner`.
class ContextMixing {
public:
    /// @param mode   `weighted`: a mean with one learned weight; `concat_project`: a linear layer on both, concatenated
    void add_to(torch::nn::Module& owner, std::int64_t head_dim, std::int64_t context_dim, const std::string& mode);

    /// @param context   (B, H, S, context_dim), undefined: no context
    /// @return          keys and values (B, H, S, D)
    std::pair<torch::Tensor, torch::Tensor> keys_and_values(const torch::Tensor& context);
    torch::Tensor queries(const torch::Tensor& states) { return cross_q_(states); }
    /// Both have the shape (..., D).
    torch::Tensor mix(const torch::Tensor& self, const torch::Tensor& cross) { return mix(weights(), self, cross); }

    /// Weight and bias of queries, of keys, of values, then the weights of the mixing.
    std::vector<torch::Tensor> weights() const;

    /// Slice tokens, (B, H, S, D), after mixing their self-attention `self` with their attention to the context.
    static torch::Tensor attend(const std::vector<torch::Tensor>& weights, const torch::Tensor& tokens,
                                const torch::Tensor& self, const torch::Tensor& context);

private:
    static torch::Tensor mix(const std::vector<torch::Tensor>& weights, const torch::Tensor& self,
                             const torch::Tensor& cross);

    torch::Tensor state_mixing_;  // a single value; undefined with concat_project
    torch::nn::Linear cross_q_{nullptr}, cross_k_{nullptr}, cross_v_{nullptr};
    torch::nn::Sequential concat_project_{nullptr};  // null with `weighted`
};

struct GaleOptions {
    SliceOptions slices;           ///< `num_slices` is the number of learned queries in GALE_FA
    std::int64_t context_dim = 0;  ///< 0: no context
    std::string state_mixing_mode = "weighted";
    double dropout = 0.0;
    bool concrete_dropout = false;
};

/// Dropout of an attention layer's output, registered as out_dropout: at a learned rate, a fixed rate, or none.
class OutputDropout {
public:
    void add_to(torch::nn::Module& owner, double rate, bool is_learned, const SharedNoise& noise);
    torch::Tensor apply(const torch::Tensor& x);
    bool is_active(bool is_training) const { return learned_ || (fixed_ && is_training); }

private:
    RowDropout fixed_{nullptr};
    ConcreteDropout learned_{nullptr};
};

/// GALE, the attention layer of GeoTransolver: physics attention whose slice tokens also attend to the context.
class GaleImpl : public torch::nn::Module {
public:
    explicit GaleImpl(GaleOptions options);

    /// @param x         (B, N, C)
    /// @param context   (B, H, S, context_dim), undefined: no context
    /// @return          (B, N, C)
    torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& context);

    /// Sets the layer's weights, sizes and context in a block of the fused operators. Returns the reason why they
    /// cannot compute `forward`, or null if they can.
    const char* fuse_into(FusedBlock& block, const torch::Tensor& context) const;

private:
    SliceProjection slices_;
    ContextMixing mixing_;
    OutputDropout out_dropout_;
    torch::nn::Linear qkv_project_{nullptr};
    torch::nn::Linear out_linear_{nullptr};
};
TORCH_MODULE(Gale);

/// GALE_FA: FLARE's mixing of the points; each point also attends to the context, with scale 1.
class GaleFaImpl : public torch::nn::Module {
public:
    explicit GaleFaImpl(const GaleOptions& options);

    /// The same arguments as `GaleImpl::forward`.
    torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& context);

private:
    std::int64_t num_heads_;
    FlareMixing flare_;
    ContextMixing mixing_;
    OutputDropout out_dropout_;
    torch::nn::Linear in_project_x_{nullptr};
    torch::nn::Linear out_linear_{nullptr};
};
TORCH_MODULE(GaleFa);

}  // namespace meshard
