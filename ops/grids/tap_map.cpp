// SPDX-License-Identifier: Apache-2.0
#include "ops/grids/tap_map.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <string>

namespace meshard {
namespace {

/// A copy of a CPU table on a device, cached until the process ends: the host waits for each copy, and a step that is
/// recorded needs its tables at a fixed place.
at::Tensor table_on(const at::Device& device, const at::Tensor& table)
{
    if (device.is_cpu()) return table;
    static std::mutex mutex;
    static auto* const tables = new std::map<std::string, at::Tensor>;  // never freed: a device may end before
    const auto key = device.str() + c10::toString(table.scalar_type()) +
                     std::string(static_cast<const char*>(table.const_data_ptr()), table.nbytes());
    {
        const std::lock_guard lock(mutex);
        if (const auto found = tables->find(key); found != tables->end()) return found->second;
    }
    const c10::InferenceMode for_later_steps_too(false);
    const auto copy = table.to(device);
    const std::lock_guard lock(mutex);
    return tables->emplace(key, copy).first->second;
}

}  // namespace

TapMap::TapMap(const RuleCall& call, std::int64_t axis, const AxisLayout& in, Taps taps,
               const std::function<std::int64_t(std::int64_t)>& boundary)
    : taps_(std::move(taps))
{
    const auto extents = extents_by_boundary(*in.extents, taps_.out, boundary);
    const auto outputs = ranges_of(extents);
    std::vector<Range> needed;
    for (const auto& range : outputs) {
        Range read{std::numeric_limits<std::int64_t>::max(), 0};
        for (const auto& index : taps_.index) {
            for (auto o = range.begin; o < range.end; ++o) {
                read.begin = std::min(read.begin, index[o]);
                read.end = std::max(read.end, index[o] + 1);
            }
        }
        needed.push_back(range.size() > 0 ? read : Range{});
    }
    out_ = cut_layout(in, in.placement.dim, extents);
    outputs_ = outputs[call.coordinate(axis)];
    exchange_.emplace_back(call.device_mesh()->group(axis), in, std::move(needed));
}

at::Tensor TapMap::index_of(std::size_t tap, const at::Tensor& like) const
{
    const c10::IntArrayRef own(taps_.index[tap].data() + outputs_.begin, outputs_.size());
    return table_on(like.device(), at::tensor(own, at::kLong).sub_(exchange_.front().needed().begin));
}

at::Tensor TapMap::weight_of(std::size_t tap, const at::Tensor& like) const
{
    const c10::ArrayRef<double> own(taps_.weight[tap].data() + outputs_.begin, outputs_.size());
    std::vector<std::int64_t> shape(like.dim(), 1);
    shape[dim()] = outputs_.size();
    return table_on(like.device(), at::tensor(own, at::kDouble).to(like.scalar_type())).view(shape);
}

at::Tensor TapMap::apply(const at::Tensor& local) const
{
    const auto piece = exchange_.front().borrow(local);
    if (taps_.weight.empty()) return piece.index_select(dim(), index_of(0, piece));
    // Weighted values are added in the type in which the operator adds.
    const auto values = piece.to(at::toOpMathType(piece.scalar_type()));
    at::Tensor sum;
    for (std::size_t t = 0; t < taps_.index.size(); ++t) {
        const auto term = values.index_select(dim(), index_of(t, values)).mul_(weight_of(t, values));
        sum = sum.defined() ? sum.add_(term) : term;
    }
    return sum.to(local.scalar_type());
}

at::Tensor TapMap::apply_adjoint(const at::Tensor& gradient) const
{
    const auto& exchange = exchange_.front();
    auto shape = gradient.sizes().vec();
    shape[dim()] = exchange.needed().size();
    const auto values = gradient.to(at::toOpMathType(gradient.scalar_type()));
    auto of_piece = at::zeros(shape, values.options());
    for (std::size_t t = 0; t < taps_.index.size(); ++t) {
        const auto weighted = taps_.weight.empty() ? values : values * weight_of(t, values);
        of_piece.index_add_(dim(), index_of(t, values), weighted);
    }
    return exchange.give_back(of_piece.to(gradient.scalar_type()));
}

}  // namespace meshard
