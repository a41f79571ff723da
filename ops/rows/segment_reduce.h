// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace meshard {

enum class SegmentReduction : std::uint8_t { Sum, Mean, Max, Min };

struct SegmentResult {
    at::Tensor values;  ///< (rows, ...); 0 for rows without entries
    /// For Max and Min, (rows, ...), int64: the first entry that is the extreme (NaN exceeds all others), -1 for rows
    /// without entries.
    at::Tensor arguments;
};

/// Reduces the entries of each row of a Csr: row i has entries offsets[i], ..., offsets[i + 1] - 1. Tensors are plain,
/// without communication: the neighbours of a rank's own queries are all on it (neighbors.h). Entries are added in
/// their order; the gradient of an extreme goes to its argument.
///
/// @param values   (entries, ...), of a floating type
/// @param offsets  (rows + 1), int64; may be on another device
/// @throws InvalidInput if the offsets do not start at 0, decrease, or do not end at the number of entries
SegmentResult segment_reduce(const at::Tensor& values, const at::Tensor& offsets, SegmentReduction reduction);

/// Softmax among the entries of each row; (entries, ...) to the same shape.
at::Tensor segment_softmax(const at::Tensor& values, const at::Tensor& offsets);

}  // namespace meshard
