// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/tensor/shard_spec.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace meshard {

/// This rank's rows of a tensor that is plain, Replicate, or cut along its rows.
struct CutRows {
    at::Tensor own;          ///< plain, with autograd history
    SpecPtr layout;          ///< null for a plain tensor
    std::int64_t axis = -1;  ///< axis of the device mesh that cuts the rows; -1 if every rank has all rows
    std::int64_t num_global = 0;

    bool is_cut() const { return axis >= 0; }
    /// Ranks over which the rows are cut; a group of one if they are not.
    RankGroup group() const;
    /// Global ids of the own rows: from the index map, or row numbers in the whole.
    std::vector<std::int64_t> ids() const;
    at::Tensor like(const at::Tensor& rows) const;  ///< `rows`, one for each own row, as a tensor with the same layout
};

/// Global ids of this rank's `num_own` rows of a tensor that `axis` cuts along its rows: from the index map, or row
/// numbers in the whole.
std::vector<std::int64_t> own_row_ids(const ShardSpec& layout, std::int64_t axis, std::int64_t num_own);

/// This rank's rows of a tensor; pending sums are reduced first. Errors begin with `where` and call the rows `what`.
/// @throws InvalidInput if the tensor is cut along another dimension, along several axes, or in blocks
CutRows cut_rows_of(const char* where, const char* what, const at::Tensor& tensor);

/// All ranks throw InvalidInput if `error` is not empty on any rank, with the text of the lowest such rank. Collective.
void throw_together(const std::string& error, const RankGroup& group);

}  // namespace meshard
