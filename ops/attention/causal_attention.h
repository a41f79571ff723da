// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/ring_attention.h"

namespace meshard {

/// Causal attention of a sequence to itself with the work shared out in proportion to the rows. In a plain ring the last rank would have all keys
/// to look at and the first only its own; here, of every pair of ranks, the one that is earlier in the sequence takes half of the later one's
/// queries and sends back what they found. `keys.ranges` are those of the queries too, `keys.mask` is not defined.
///
/// Every rank sends and receives pieces; the next are under way while one is computed. Collective over `group`.
AttentionOutput causal_attention(const AttentionSettings& settings, const at::Tensor& queries, const AttentionKeys& keys, const RankGroup& group);

/// Gradients of what this rank holds, in the type of sums. Collective over `group`.
AttentionGradients causal_attention_backward(const AttentionSettings& settings, const AttentionQueries& queries, const AttentionKeys& keys,
                                             const RankGroup& group, WantedGradients wanted);

}  // namespace meshard
