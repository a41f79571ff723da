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
    at::Tensor own;          ///< a plain tensor, with its autograd history
    SpecPtr layout;          ///< null for a plain tensor
    std::int64_t axis = -1;  ///< of the device mesh, that cuts the rows; -1 if every rank has all rows
    std::int64_t num_global = 0;

    bool is_cut() const { return axis >= 0; }
    RankGroup group() const;                        ///< ranks among which the rows are cut; a group of one if they are not
    std::vector<std::int64_t> ids() const;          ///< global ids of the own rows: from the index map, or row numbers in the whole
    at::Tensor like(const at::Tensor& rows) const;  ///< one row for each own row, as a tensor with the same layout
};

/// Global ids of this rank's `num_own` rows of a tensor that `axis` cuts along its rows: from the index map, or row numbers in the whole.
std::vector<std::int64_t> own_row_ids(const ShardSpec& layout, std::int64_t axis, std::int64_t num_own);

/// Reduces pending sums first. Errors begin with `where` and call the rows `what`.
/// @throws InvalidInput if the tensor is cut along another dimension, along several axes, or in blocks
CutRows cut_rows_of(const char* where, const char* what, const at::Tensor& tensor);

/// Collective: all ranks throw InvalidInput if `error` is not empty on any rank, with the text of the lowest such rank.
void throw_together(const std::string& error, const RankGroup& group);

}  // namespace meshard
