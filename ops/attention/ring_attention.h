// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/attention_block.h"
#include "sharding/ranks/rank_group.h"

#include <vector>

namespace meshard {

/// Keys (B, K, S, D) and values (B, K, S, E) of this rank, and the row ranges of all ranks.
struct AttentionKeys {
    at::Tensor keys, values;
    /// Mask of this rank's queries; unless it broadcasts over keys, its columns are the keys from `first_masked` on.
    at::Tensor mask;
    std::int64_t first_masked = 0;
    std::vector<RowRange> ranges;  ///< one for each rank of the group, of any length
};

/// Attention of this rank's queries, which are the rows `rows` of the whole, to the keys and values of all ranks of a
/// group, which are sent around a ring: a rank receives the next piece while it computes one. Memory beyond arguments
/// and result: a few pieces (Liu, Zaharia and Abbeel 2023). A group of one sends nothing. Collective over `group`.
AttentionOutput ring_attention(const AttentionSettings& settings, const at::Tensor& queries, RowRange rows,
                               const AttentionKeys& keys, const RankGroup& group);

struct WantedGradients {
    bool queries = true, keys = true, values = true, mask = false;
};

/// Gradients of this rank's queries, keys, values and mask, in the type of sums; undefined where not wanted. The
/// gradients of keys and values follow them around the ring and end at their owner. Collective over `group`.
AttentionGradients ring_attention_backward(const AttentionSettings& settings, const AttentionQueries& queries,
                                           const AttentionKeys& keys, const RankGroup& group, WantedGradients wanted);

/// Bytes that rank `rank` receives in forward.
/// @param row_bytes   bytes of a row of keys and values together
std::int64_t ring_bytes(const std::vector<RowRange>& keys, int rank, std::int64_t row_bytes);

}  // namespace meshard
