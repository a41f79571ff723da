// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace meshard {

/// Means of the features in each slice (Wu et al. 2024, Transolver, eq. 2), over the owned rows of all ranks:
///
///     token[b, h, s, :] = sum_n weights[b, n, h, s] * features[b, n, h, :] / (sum_n weights[b, n, h, s] + epsilon)
///
/// On sharded rows (Shard(1)) the sums and their weights are added in one all-reduce of B * H * S * (D + 1) numbers, of
/// float or wider; backward needs none if the tokens' gradient is complete, as `deslice_tokens` makes it. The result is
/// Replicate.
///
/// @param weights    (B, N, H, S)
/// @param features   (B, N, H, D)
/// @return           (B, H, S, D), plain for plain rows
/// @throws InvalidInput on shapes that do not fit
at::Tensor slice_tokens(const at::Tensor& weights, const at::Tensor& features, double epsilon);

/// Distributes slice tokens to the points: y[b, n, h, :] = sum_s weights[b, n, h, s] * tokens[b, h, s, :].
///
/// No communication forward. Backward sums the tokens' gradient over all ranks in one all-reduce of B * H * S * D
/// numbers.
///
/// @param weights    (B, N, H, S)
/// @param tokens     (B, H, S, D), equal on every rank
/// @return           (B, N, H, D), with the layout of `weights`
at::Tensor deslice_tokens(const at::Tensor& weights, const at::Tensor& tokens);

}  // namespace meshard
