// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/attention_block.h"

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace meshard {

/// Kernels for the attention of queries to one piece of the keys. Each also returns the log-sum-exp, by which pieces
/// are merged. Backward, given output and log-sum-exp over all keys, uses the weights of the piece's keys among all
/// keys, and so returns exactly the piece's contribution to the gradients.
enum class PieceKernel : std::uint8_t {
    Tiles,      ///< LibTorch's products of tiles of scores, which are stored: supports everything
    Cpu,        ///< LibTorch's flash attention for CPUs
    Cudnn,      ///< cuDNN's attention for GPUs: half precision, no mask, at least two keys
    Flash,      ///< LibTorch's flash attention for GPUs: half precision, no mask
    Efficient,  ///< LibTorch's memory-efficient attention for GPUs: single and half precision, masks
};

/// The properties that decide which kernel is used.
struct PieceForm {
    c10::DeviceType device = c10::kCPU;
    at::ScalarType type = at::kFloat;
    std::int64_t batch = 1, heads = 1;          ///< extents of the queries
    std::int64_t width = 1, value_width = 1;    ///< channels of keys and of values
    std::int64_t most_numbers = 0;              ///< numbers spanned in memory by queries, keys or values, gaps included
    std::optional<at::ScalarType> mask_type{};  ///< none without a mask
    bool drops = false;                         ///< whether dropout is used
    bool wants_mask_gradient = false;
    bool prefers_cudnn = false;  ///< whether LibTorch would use cuDNN
};

/// Chooses a kernel. On devices, kernels that LibTorch was told not to use (torch.backends.cuda.enable_flash_sdp) are
/// excluded; in exact mode only `Tiles` is used, since the others add in any order.
PieceKernel choose_piece_kernel(const PieceForm& form);

/// Queries (B, H, L, D), keys (B, K, S, D) and values (B, K, S, E), none empty, and a mask of four dimensions that
/// broadcasts to (B, H, L, S).
struct AttentionPiece {
    at::Tensor queries, keys, values;
    at::Tensor mask;  ///< undefined: no mask
    double scale = 1;
    bool triangular = false;  ///< L = S, no mask, and row i attends to keys 0 to i
};

/// Output in the type of the queries, and log-sum-exp in the type of sums. Rows without any key get zero and minus
/// infinity. For all kernels but `Tiles`.
AttentionOutput attend_to_piece(PieceKernel kernel, const AttentionPiece& piece);

/// Adds the piece's contribution to the gradients of queries, keys and values that are defined. For all kernels but
/// `Tiles`.
void add_piece_gradients(PieceKernel kernel, const AttentionPiece& piece, const AttentionQueries& queries,
                         const AttentionGradients& gradients);

/// The mask as an additive one: a bool mask becomes zeros of `type` and minus infinity.
at::Tensor added_mask(const at::Tensor& mask, at::ScalarType type);

}  // namespace meshard
