// SPDX-License-Identifier: Apache-2.0
#include "ops/range_exchange.h"

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

RangeExchange::RangeExchange(const RankGroup& group, const AxisLayout& layout, std::vector<Range> needed)
    : group_(&group), dim_(layout.placement.dim), me_(group.rank()), needed_(std::move(needed))
{
    std::int64_t begin = 0;
    for (const auto extent : *layout.extents) {
        owned_.push_back({begin, begin + extent});
        begin += extent;
    }
    for (std::size_t r = 0; r < needed_.size(); ++r) communicates_ |= overlap(needed_[r], owned_[r]).size() != needed_[r].size();
}

at::Tensor RangeExchange::borrow(const at::Tensor& local, std::int64_t before, std::int64_t after, const at::Scalar& fill) const
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
        const auto size = static_cast<std::int64_t>(owned_.size());
        auto shape = local.sizes().vec();
        shape[dim_] = 1;
        const auto row = c10::multiply_integers(shape);
        std::vector<at::Tensor> outgoing;
        std::vector<std::int64_t> send(size), receive(size);
        for (std::int64_t r = 0; r < size; ++r) {
            if (r == me_) continue;
            const auto there = overlap(needed_[r], owned());
            if (there.size() > 0) outgoing.push_back(local.narrow(dim_, there.begin - owned().begin, there.size()).reshape({-1}));
            send[r] = there.size() * row;
            receive[r] = overlap(needed(), owned_[r]).size() * row;
        }
        const auto buffer = outgoing.empty() ? at::empty({0}, local.options()) : at::cat(outgoing);
        const auto received = group_->all_to_all_rows(buffer, send, receive);
        std::int64_t offset = 0;
        for (std::int64_t r = 0; r < size; ++r) {
            if (r == me_) take_own();
            shape[dim_] = overlap(needed(), owned_[r]).size();
            if (r == me_ || shape[dim_] == 0) continue;
            parts.push_back(received.narrow(0, offset, receive[r]).view(shape));
            offset += receive[r];
        }
    }
    if (after > 0) parts.push_back(filled(local, dim_, after, fill));
    if (parts.empty()) return filled(local, dim_, 0, fill);
    return parts.size() == 1 ? parts[0] : at::cat(parts, dim_);
}

at::Tensor RangeExchange::give_back(const at::Tensor& gradient) const
{
    const auto own = overlap(needed(), owned());
    const auto own_part = [&] { return gradient.narrow(dim_, own.size() > 0 ? own.begin - needed().begin : 0, own.size()); };
    if (!communicates_ && own == owned()) return own_part();

    auto result = filled(gradient, dim_, owned().size(), 0);
    if (own.size() > 0) result.narrow(dim_, own.begin - owned().begin, own.size()).copy_(own_part());
    if (!communicates_) return result;

    const auto size = static_cast<std::int64_t>(owned_.size());
    auto shape = gradient.sizes().vec();
    shape[dim_] = 1;
    const auto row = c10::multiply_integers(shape);
    std::vector<at::Tensor> outgoing;
    std::vector<std::int64_t> send(size), receive(size);
    for (std::int64_t r = 0; r < size; ++r) {
        if (r == me_) continue;
        const auto borrowed = overlap(needed(), owned_[r]);
        if (borrowed.size() > 0) outgoing.push_back(gradient.narrow(dim_, borrowed.begin - needed().begin, borrowed.size()).reshape({-1}));
        send[r] = borrowed.size() * row;
        receive[r] = overlap(needed_[r], owned()).size() * row;
    }
    const auto buffer = outgoing.empty() ? at::empty({0}, gradient.options()) : at::cat(outgoing);
    const auto received = group_->all_to_all_rows(buffer, send, receive);
    std::int64_t offset = 0;
    for (std::int64_t r = 0; r < size; ++r) {
        const auto lent = overlap(needed_[r], owned());
        if (r == me_ || lent.size() == 0) continue;
        shape[dim_] = lent.size();
        result.narrow(dim_, lent.begin - owned().begin, lent.size()).add_(received.narrow(0, offset, receive[r]).view(shape));
        offset += receive[r];
    }
    return result;
}

}  // namespace meshard
