// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace meshard {

/// Attention of slice tokens to each other (Wu et al. 2024, Transolver, eq. 3), softmax(q k^T / sqrt(D)) v in each head
/// of plain tokens. On devices with kernels, in float and for at most kMostTokens slices, one kernel forward and one
/// backward, which has no second derivative; else by LibTorch's operators.
/// @param tokens       (B, H, S, D)
/// @param qkv_weight   (3 D, D): queries, then keys, then values
/// @return             (B, H, S, D)
at::Tensor token_attention(const at::Tensor& tokens, const at::Tensor& qkv_weight);

/// The same by LibTorch's operators.
at::Tensor token_attention_by_operators(const at::Tensor& tokens, const at::Tensor& qkv_weight);

}  // namespace meshard
