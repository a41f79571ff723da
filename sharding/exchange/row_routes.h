// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/ghosts/index_map.h"
#include "sharding/ranks/rank_group.h"
#include "sharding/tensor/shard_spec.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace meshard {

/// Routes of rows between ranks by global id: every rank owns some rows of a whole, and wants the rows with given ids,
/// in any order and with repetitions. Routes are found once and used many times; each use is one all-to-all, in which a
/// row that a rank wants from another is sent once.
///
/// Example: rank 0 owns the ids 4 0, rank 1 owns 1 2 3. Rank 0 wants 3 3 4 and receives one row from rank 1 and one
/// from itself; rank 1 wants nothing.
class RowRoutes {
public:
    /// Finds the routes. Ownership is stored in blocks of ids over all ranks, so that no rank needs the whole list.
    /// Collective.
    /// @throws InvalidInput on every rank if an id lies outside [0, num_global), is owned twice, or is wanted and owned
    /// by nobody.
    static std::shared_ptr<const RowRoutes> find(std::span<const std::int64_t> owned,
                                                 std::span<const std::int64_t> wanted, std::int64_t num_global,
                                                 const RankGroup& group);

    std::int64_t num_owned() const { return num_owned_; }
    std::int64_t num_wanted() const { return wanted_.numel(); }

    /// (owned rows, ...) to (wanted rows, ...), plain tensors. Collective; differentiable: gradients of a row wanted
    /// several times add up at its owner.
    at::Tensor gather(const at::Tensor& owned_rows) const;

    /// The adjoint: (wanted rows, ...) to (owned rows, ...), what has the same id is added up, in an order that depends
    /// on ids and ranks only; ids that nobody has give zero. Collective; differentiable.
    at::Tensor scatter(const at::Tensor& wanted_rows) const;

private:
    RowRoutes() = default;
    at::Tensor gathered(const at::Tensor& rows) const;
    at::Tensor scattered(const at::Tensor& rows) const;

    RankGroup group_;
    std::int64_t num_owned_ = 0;
    at::Tensor sent_;  ///< local rows, sorted by receiving rank
    std::vector<std::int64_t> send_rows_, receive_rows_;
    at::Tensor wanted_;  ///< for each wanted row its position among the received ones
};

/// The whole, as a plain tensor on every rank, its rows in the order of their global ids rather than in that of the
/// ranks. Collective; differentiable as `full_tensor` is. Without an index map in its layout it is `full_tensor`.
at::Tensor full_tensor_in_global_order(const at::Tensor& tensor);

}  // namespace meshard
