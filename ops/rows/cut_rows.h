// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/tensor/shard_spec.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace meshard {

/// What this rank holds of a tensor that is plain, Replicate, or cut along its rows.
struct CutRows {
    at::Tensor own;          ///< plain, with its history
    SpecPtr layout;          ///< null for a plain tensor
    std::int64_t axis = -1;  ///< that cuts the rows; -1 if every rank has them all
    std::int64_t num_global = 0;

    bool is_cut() const { return axis >= 0; }
    RankGroup group() const;                        ///< among which the rows are cut; of one if they are not
    std::vector<std::int64_t> ids() const;          ///< global ids of the own rows: those of the index map, or numbers of rows in the whole
    at::Tensor like(const at::Tensor& rows) const;  ///< rows that belong to the own ones, as a tensor that lies as this one does
};

/// Reduces what is pending. @throws InvalidInput if the tensor is cut along another dimension, along several axes, or in blocks
CutRows cut_rows_of(const char* where, const char* what, const at::Tensor& tensor);

/// Collective: all ranks throw InvalidInput if one has found something wrong (its `error` is not empty), with what the first of them found.
void throw_together(const std::string& error, const RankGroup& group);

}  // namespace meshard
