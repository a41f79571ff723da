// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/ranks/rank_group.h"
#include "sharding/tensor/shard_spec.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace meshard {

/// The entries begin, ..., end - 1 of a dimension of the whole.
struct Range {
    std::int64_t begin = 0;
    std::int64_t end = 0;

    std::int64_t size() const { return end - begin; }
    bool operator==(const Range&) const = default;
};

/// Intersection of two ranges; size zero if they do not overlap.
Range overlap(const Range& a, const Range& b);

/// The range of each rank.
std::vector<Range> ranges_of(const Extents& extents);

/// Gives every rank a contiguous range of a cut dimension, its own entries and ghosts, for operators that read grid
/// neighbours.
///
/// Every rank knows which entries all ranks own and need, so that no sizes are sent: one all-to-all transfers exactly
/// the missing entries, from all ranks that the range overlaps. If no rank misses an entry, nothing is sent. Two cut
/// dimensions are exchanged one after the other; the second exchange includes the corners.
class RangeExchange {
public:
    /// @param layout   a Shard with one block, on the axis of `group`
    /// @param needed   one range for each rank, within the whole, possibly empty
    RangeExchange(const RankGroup& group, const AxisLayout& layout, std::vector<Range> needed);

    /// Receives this rank's needed range and adds `before` and `after` entries with the value `fill` around it.
    /// Collective unless every rank holds the range that it needs. `local` is the owned range; the result may be a view
    /// of it.
    at::Tensor borrow(const at::Tensor& local, std::int64_t before = 0, std::int64_t after = 0,
                      const at::Scalar& fill = 0) const;

    /// The adjoint of `borrow` without fill: converts the gradient of the needed range to that of the owned range.
    /// Gradients of borrowed entries are sent to their owner and added there: first the owner's own part, then those of
    /// the other ranks in ascending order, so that sums are the same in every run.
    at::Tensor give_back(const at::Tensor& gradient) const;

    const Range& owned() const { return owned_[me_]; }
    const Range& needed() const { return needed_[me_]; }

private:
    /// Sends the range `outgoing[r]` of `tensor`, which holds the range `held`, to each other rank r; returns the
    /// ranges `incoming[r]` received from each, undefined if empty.
    std::vector<at::Tensor> swap(const at::Tensor& tensor, const Range& held, const std::vector<Range>& outgoing,
                                 const std::vector<Range>& incoming) const;

    std::vector<Range> lent_to_others() const;        ///< for each rank, the entries of this rank that it needs
    std::vector<Range> borrowed_from_others() const;  ///< for each rank, its entries that this rank needs

    const RankGroup* group_;
    std::int64_t dim_;
    std::int64_t me_;
    std::vector<Range> owned_, needed_;
    bool communicates_ = false;
};

}  // namespace meshard
