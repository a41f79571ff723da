// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace meshard {

enum class SegmentReduction : std::uint8_t { Sum, Mean, Max, Min };

struct SegmentResult {
    at::Tensor values;     ///< (rows, ...); 0 for rows without entries
    at::Tensor arguments;  ///< of Max and Min, (rows, ...), int64: the first entry that is the extreme (a NaN before all others), -1 for rows without entries
};

/// Combines the entries of each row of a Csr: row i has entries offsets[i], ..., offsets[i + 1] - 1. Plain tensors, no communication: neighbours of a
/// rank's own queries are all on it (neighbors.h). Entries are added in their order; an extreme's gradient goes to its argument.
///
/// @param values   (entries, ...), of a floating type
/// @param offsets  (rows + 1), int64; may lie on another device
/// @throws InvalidInput if the offsets do not start at 0, fall, or do not end at the number of entries
SegmentResult segment_reduce(const at::Tensor& values, const at::Tensor& offsets, SegmentReduction reduction);

/// Softmax among the entries of each row; (entries, ...) to the same shape.
at::Tensor segment_softmax(const at::Tensor& values, const at::Tensor& offsets);

}  // namespace meshard
