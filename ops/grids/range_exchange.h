// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sharding/ranks/rank_group.h"
#include "sharding/tensor/shard_spec.h"

namespace meshard {

/// Entries begin, ..., end - 1 of a dimension of the whole.
struct Range {
    std::int64_t begin = 0;
    std::int64_t end = 0;

    std::int64_t size() const { return end - begin; }
    bool operator==(const Range&) const = default;
};

/// What two ranges share; of size zero where they share nothing.
Range overlap(const Range& a, const Range& b);

/// The range of each rank.
std::vector<Range> ranges_of(const Extents& extents);

/// Brings every rank a contiguous range of a cut dimension: operators that look at neighbours along a grid.
///
/// Every rank knows what all ranks own and need, so that no sizes travel: one all-to-all brings exactly what is missing, from as many ranks as
/// the range reaches over. Where no rank misses anything nothing is sent at all. Two cut dimensions are brought one after the other; the
/// corners come with the second.
class RangeExchange {
public:
    /// `layout` is a Shard with one block, on the axis of `group`; `needed` has one range a rank, within the whole, empty ones allowed.
    RangeExchange(const RankGroup& group, const AxisLayout& layout, std::vector<Range> needed);

    /// The needed range of this rank, between `before` and `after` entries of the value `fill`. Collective if `communicates`. `local` holds
    /// the owned range; the result may be a view of it.
    at::Tensor borrow(const at::Tensor& local, std::int64_t before = 0, std::int64_t after = 0, const at::Scalar& fill = 0) const;

    /// The adjoint of `borrow` without fill: a gradient of the needed range becomes one of the owned range. What was borrowed is added at its
    /// owner: first the owner's own part, then those of the other ranks in ascending order, so that sums are the same from run to run.
    at::Tensor give_back(const at::Tensor& gradient) const;

    const Range& owned() const { return owned_[me_]; }
    const Range& needed() const { return needed_[me_]; }

    /// Some rank needs what another owns.
    bool communicates() const { return communicates_; }

private:
    /// Sends each other rank the part of `tensor`, whose dimension holds `held`, that lies in `outgoing` of that rank; returns what lies in
    /// `incoming` of each, one tensor a rank, undefined where that is nothing.
    std::vector<at::Tensor> swap(const at::Tensor& tensor, const Range& held, const std::vector<Range>& outgoing, const std::vector<Range>& incoming) const;

    std::vector<Range> lent_to_others() const;         ///< what each rank needs of this one's
    std::vector<Range> borrowed_from_others() const;   ///< what this rank needs of each one's

    const RankGroup* group_;
    std::int64_t dim_;
    std::int64_t me_;
    std::vector<Range> owned_, needed_;
    bool communicates_ = false;
};

}  // namespace meshard
