// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/ring_attention.h"

namespace meshard {

/// Causal self-attention with work proportional to each rank's rows. In a plain ring the last rank would attend to all
/// keys and the first only to its own; here, in every pair of ranks, the earlier one in the sequence computes half of
/// the later one's queries and sends back the results. `keys.ranges` are also the ranges of the queries; `keys.mask`
/// must be undefined.
///
/// Ranks exchange the next pieces while they compute one. Collective over `group`.
AttentionOutput causal_attention(const AttentionSettings& settings, const at::Tensor& queries,
                                 const AttentionKeys& keys, const RankGroup& group);

/// Gradients of this rank's queries, keys and values, in the type of sums. Collective over `group`.
AttentionGradients causal_attention_backward(const AttentionSettings& settings, const AttentionQueries& queries,
                                             const AttentionKeys& keys, const RankGroup& group, WantedGradients wanted);

}  // namespace meshard
