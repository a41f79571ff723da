// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/layers/random_draws.h"

#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <memory>

namespace meshard {

/// Low-rank attention of FLARE (Puri et al. 2025, arXiv 2508.12594): M learned queries attend to all points, then each
/// point attends to the M results. Both steps use the same keys and queries, with scale 1.
///
/// The parameters (q_global, self_k, self_v) are registered in the module `owner`.
class FlareMixing {
public:
    void add_queries(torch::nn::Module& owner, std::int64_t num_heads, std::int64_t num_queries, std::int64_t head_dim);
    void add_keys_and_values(torch::nn::Module& owner, std::int64_t head_dim);

    /// (B, N, H, D) to (B, N, H, D)
    torch::Tensor mix(const torch::Tensor& x_mid);

private:
    torch::Tensor q_global_;  // (1, H, M, D)
    torch::nn::Linear self_k_{nullptr};
    torch::nn::Linear self_v_{nullptr};
};

struct FlareAttentionOptions {
    std::int64_t dim = 0;          ///< channels of the points, C
    std::int64_t num_heads = 1;    ///< H
    std::int64_t head_dim = 1;     ///< D
    std::int64_t num_queries = 1;  ///< M
    double dropout = 0.0;
    std::shared_ptr<RowNoise> noise = {};  ///< noise of the dropout
};

/// An attention layer of FLARE: projection, mixing, projection.
class FlareAttentionImpl : public torch::nn::Module {
public:
    explicit FlareAttentionImpl(const FlareAttentionOptions& options);

    /// (B, N, C) to (B, N, C)
    torch::Tensor forward(const torch::Tensor& x);

private:
    std::int64_t num_heads_;
    FlareMixing mixing_;
    torch::nn::Linear in_project_x_{nullptr};
    torch::nn::Linear out_linear_{nullptr};
    RowDropout out_dropout_{nullptr};  // null without dropout
};
TORCH_MODULE(FlareAttention);

}  // namespace meshard
