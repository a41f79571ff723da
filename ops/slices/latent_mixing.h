// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace meshard {

/// FLARE's attention (Puri et al. 2025): M latents attend to the points of all ranks, then each point to the results.
///
///     latent[b, h, m, :] = sum_n softmax over n of (keys[b, n, h, :] . queries[h, m, :]) values[b, n, h, :]
///     result[b, n, h, :] = sum_m softmax over m of (keys[b, n, h, :] . queries[h, m, :]) latent[b, h, m, :]
///
/// Weights are not stored but computed again, on devices with kernels in registers (SlicePoints, for up to 128
/// channels a head), on CPUs in tiles of points. Exact mode, double precision on devices and other cuts than that of
/// points or samples take LibTorch's operators, which store them. There is no second derivative.
///
/// On sharded rows (Shard(1)) ranks exchange B * H * M * (D + 1) numbers forward, in one all-gather, and add B * H * M
/// * D numbers backward, in one all-reduce, of float or wider.
///
/// @param keys, values   (B, N, H, D)
/// @param queries        (1, H, M, D), the same for all samples
/// @return               (B, N, H, D), with the layout of the keys
/// @throws InvalidInput on shapes that do not fit
at::Tensor mix_through_latents(const at::Tensor& keys, const at::Tensor& queries, const at::Tensor& values);

/// The same by LibTorch's operators, slice_tokens and deslice_tokens.
at::Tensor mix_through_latents_by_operators(const at::Tensor& keys, const at::Tensor& queries,
                                            const at::Tensor& values);

}  // namespace meshard
