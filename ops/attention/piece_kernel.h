// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/attention_block.h"

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace meshard {

/// What computes the attention of some queries to one piece of the keys. Each returns the log-sum-exp too, by which pieces are merged. Its backward pass, given
/// output and log-sum-exp over all keys, has the weights that these keys have among all, and so returns just what the piece adds to the gradients.
enum class PieceKernel : std::uint8_t {
    Tiles,      ///< LibTorch's products of tiles of scores, which lie in memory: everything
    Cpu,        ///< LibTorch's flash attention for CPUs
    Cudnn,      ///< cuDNN's for GPUs: half precision, no mask, two keys or more
    Flash,      ///< LibTorch's flash attention for GPUs: half precision, no mask
    Efficient,  ///< LibTorch's memory-efficient attention for GPUs: single and half precision, masks
};

/// What the choice depends on.
struct PieceForm {
    c10::DeviceType device = c10::kCPU;
    at::ScalarType type = at::kFloat;
    std::int64_t batch = 1, heads = 1;          ///< of the queries
    std::int64_t width = 1, value_width = 1;    ///< of keys and of values
    std::int64_t most_numbers = 0;              ///< in the memory of queries, keys or values, gaps included
    std::optional<at::ScalarType> mask_type{};  ///< none without a mask
    bool drops = false;                         ///< dropout
    bool wants_mask_gradient = false;
    bool prefers_cudnn = false;  ///< LibTorch would compute it by cuDNN
};

/// Off the CPU a kernel that LibTorch was told not to use (torch.backends.cuda.enable_flash_sdp) is none, and in exact mode there are only tiles: the others
/// add in any order.
PieceKernel choose_piece_kernel(const PieceForm& form);

/// Queries (B, H, L, D), keys (B, K, S, D) and values (B, K, S, E) with at least one entry each, and a mask of four dimensions that broadcast to (B, H, L, S).
struct AttentionPiece {
    at::Tensor queries, keys, values;
    at::Tensor mask;  ///< undefined for none
    double scale = 1;
    bool triangular = false;  ///< L = S, no mask, and row i attends to keys 0 to i
};

/// Output in the type of the queries, and log-sum-exp in the type of sums. Rows without any key: zero and minus infinity. For all kernels but `Tiles`.
AttentionOutput attend_to_piece(PieceKernel kernel, const AttentionPiece& piece);

/// Adds what the piece contributes to the gradients of queries, keys and values, where they are defined. For all kernels but `Tiles`.
void add_piece_gradients(PieceKernel kernel, const AttentionPiece& piece, const AttentionQueries& queries, const AttentionGradients& gradients);

/// A mask to add: that of type bool as zeros of `type` and minus infinity.
at::Tensor added_mask(const at::Tensor& mask, at::ScalarType type);

}  // namespace meshard
