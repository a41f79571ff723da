// SPDX-License-Identifier: Apache-2.0
#include "ops/grids/range_exchange.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace meshard {
namespace {

at::Tensor filled(const at::Tensor& like, std::int64_t dim, std::int64_t extent, const at::Scalar& value)
{
    auto shape = like.sizes().vec();
    shape[dim] = extent;
    return at::full(shape, value, like.options());
}

}  // namespace

Range overlap(const Range& a, const Range& b)
{
    const auto begin = std::max(a.begin, b.begin);
    return {begin, std::max(begin, std::min(a.end, b.end))};
}

std::vector<Range> ranges_of(const Extents& extents)
{
    std::vector<Range> ranges;
    std::int64_t begin = 0;
    for (const auto extent : extents) {
        ranges.push_back({begin, begin + extent});
        begin += extent;
    }
    return ranges;
}

RangeExchange::RangeExchange(const RankGroup& group, const AxisLayout& layout, std::vector<Range> needed)
    : group_(&group), dim_(layout.placement.dim), me_(group.rank()), owned_(ranges_of(*layout.extents)),
      needed_(std::move(needed))
{
    for (std::size_t r = 0; r < needed_.size(); ++r)
        communicates_ |= overlap(needed_[r], owned_[r]).size() != needed_[r].size();
}

std::vector<at::Tensor> RangeExchange::swap(const at::Tensor& tensor, const Range& held,
                                            const std::vector<Range>& outgoing,
                                            const std::vector<Range>& incoming) const
{
    const auto size = std::ssize(owned_);
    auto shape = tensor.sizes().vec();
    shape[dim_] = 1;
    const auto row = c10::multiply_integers(shape);
    std::vector<at::Tensor> pieces;
    std::vector<std::int64_t> send(size), receive(size);
    for (std::int64_t r = 0; r < size; ++r) {
        if (r == me_) continue;
        if (outgoing[r].size() > 0)
            pieces.push_back(tensor.narrow(dim_, outgoing[r].begin - held.begin, outgoing[r].size()).reshape({-1}));
        send[r] = outgoing[r].size() * row;
        receive[r] = incoming[r].size() * row;
    }
    const auto buffer = pieces.empty() ? at::empty({0}, tensor.options()) : at::cat(pieces);
    const auto received = group_->all_to_all_rows(buffer, send, receive);
    std::vector<at::Tensor> result(size);
    std::int64_t offset = 0;
    for (std::int64_t r = 0; r < size; ++r) {
        if (r == me_ || incoming[r].size() == 0) continue;  // sizes are counted in rows, even if rows have no entries
        shape[dim_] = incoming[r].size();
        result[r] = received.narrow(0, offset, receive[r]).view(shape);
        offset += receive[r];
    }
    return result;
}

at::Tensor RangeExchange::borrow(const at::Tensor& local, std::int64_t before, std::int64_t after,
                                 const at::Scalar& fill) const
{
    const auto own = overlap(needed(), owned());
    std::vector<at::Tensor> parts;
    if (before > 0) parts.push_back(filled(local, dim_, before, fill));
    const auto take_own = [&] {
        if (own.size() > 0) parts.push_back(local.narrow(dim_, own.begin - owned().begin, own.size()));
    };
    if (!communicates_) {
        take_own();
    } else {
        const auto borrowed = swap(local, owned(), lent_to_others(), borrowed_from_others());
        for (std::int64_t r = 0; r < std::ssize(borrowed); ++r) {
            if (r == me_)
                take_own();
            else if (borrowed[r].defined())
                parts.push_back(borrowed[r]);
        }
    }
    if (after > 0) parts.push_back(filled(local, dim_, after, fill));
    if (parts.empty()) return filled(local, dim_, 0, fill);
    return parts.size() == 1 ? parts[0] : at::cat(parts, dim_);
}

at::Tensor RangeExchange::give_back(const at::Tensor& gradient) const
{
    const auto own = overlap(needed(), owned());
    const auto own_part = [&] {
        return gradient.narrow(dim_, own.size() > 0 ? own.begin - needed().begin : 0, own.size());
    };
    if (!communicates_ && own == owned()) return own_part();

    auto result = filled(gradient, dim_, owned().size(), 0);
    if (own.size() > 0) result.narrow(dim_, own.begin - owned().begin, own.size()).copy_(own_part());
    if (!communicates_) return result;

    const auto lent = lent_to_others();
    const auto returned = swap(gradient, needed(), borrowed_from_others(), lent);
    for (std::size_t r = 0; r < returned.size(); ++r) {
        if (returned[r].defined()) result.narrow(dim_, lent[r].begin - owned().begin, lent[r].size()).add_(returned[r]);
    }
    return result;
}

std::vector<Range> RangeExchange::lent_to_others() const
{
    std::vector<Range> ranges;
    for (const auto& needed_there : needed_) ranges.push_back(overlap(needed_there, owned()));
    return ranges;
}

std::vector<Range> RangeExchange::borrowed_from_others() const
{
    std::vector<Range> ranges;
    for (const auto& owned_there : owned_) ranges.push_back(overlap(needed(), owned_there));
    return ranges;
}

}  // namespace meshard
