// SPDX-License-Identifier: Apache-2.0
#include "ops/rules/placement_algebra.h"

#include "sharding/tensor/redistribute.h"

#include <algorithm>

namespace meshard {

bool keeps_sums(at::ScalarType from, at::ScalarType to)
{
    const auto is_whole_number = [](at::ScalarType type) { return at::isIntegralType(type, true); };
    return from == to || (!is_whole_number(from) && !is_whole_number(to) && at::promote_types(from, to) == to);
}

bool distributes(const at::Tensor& factor, bool divides)
{
    if (!factor.defined() || !factor.is_cpu()) return true;
    // Other ranks have other numbers of what another axis cuts or sums, and all must find the same.
    if (is_sharded(factor) && (spec_of(factor)->has_shard() || spec_of(factor)->has_partial())) return false;
    const auto& numbers = local_of(factor);
    return !(divides ? numbers.eq(0) : numbers.isinf()).any().item<bool>();
}

void run_sum(RuleCall& call, const SpecPtr& spec, std::int64_t dtype_arg)
{
    const auto tensor = call.tensor(0);
    const bool has_type = dtype_arg >= 0 && !call.arg(dtype_arg).isNone();
    const auto type = has_type ? call.arg(dtype_arg).toScalarType() : tensor.scalar_type();
    call.make_local();
    if (dtype_arg < 0 || type != at::kHalf || !spec->has_partial()) return call.run({spec});
    call.arg(dtype_arg) = at::kFloat;
    const auto sum = wrap(call.run_local()[0].toTensor(), spec);
    call.reduce({sum});
    call.push({sum.to(type)});
}

AxisLayouts layouts_of(const RuleCall& call, const at::Tensor& tensor)
{
    if (is_sharded(tensor)) return spec_of(tensor)->axes;
    return AxisLayouts(call.num_axes());
}

void keep_sums_only(const RuleCall& call, const at::Tensor& tensor)
{
    for (const auto& axis : layouts_of(call, tensor)) {
        if (axis.is_partial() && axis.placement.reduction != Reduction::Sum) call.reduce({tensor});
    }
}

at::Tensor narrow_operand(const RuleCall& call, const at::Tensor& local, const AxisLayout& layout, std::int64_t axis,
                          std::int64_t dim)
{
    if (dim < 0 || dim >= local.dim()) return local;
    if (local.size(dim) == 1 && layout.blocks * layout.total() != 1) return local;  // to be broadcast
    auto there = layout;
    there.placement.dim = dim;
    return narrow_to_shard(local, there, call.coordinate(axis));
}

bool cuts_any(const RuleCall& call, const at::Tensor& tensor, c10::ArrayRef<std::int64_t> dims)
{
    if (!is_sharded(tensor)) return false;
    for (const auto axis : call.axes()) {
        const auto& layout = call.layout(tensor, axis);
        if (layout.is_shard() && std::ranges::find(dims, layout.placement.dim) != dims.end()) return true;
    }
    return false;
}

AxisLayouts reduced_layouts(AxisLayouts axes, c10::ArrayRef<std::int64_t> dims, bool keepdim, Reduction reduction)
{
    for (auto& axis : axes) {
        if (!axis.is_shard()) continue;
        const auto cut = axis.placement.dim;
        if (dims.empty() || std::ranges::find(dims, cut) != dims.end()) {
            axis = {Partial(reduction), nullptr, 1};
        } else if (!keepdim) {
            axis.placement.dim -= std::ranges::count_if(dims, [&](std::int64_t dim) { return dim < cut; });
        }
    }
    return axes;
}

SpecPtr pending_sum(const SpecPtr& spec)
{
    auto axes = spec->axes;
    for (auto& axis : axes) {
        if (axis.is_shard()) axis = {Partial(), nullptr, 1};
    }
    return make_spec(spec->device_mesh, axes);
}

bool same_rows(const AxisLayout& a, const AxisLayout& b)
{
    return a.blocks == b.blocks && (a.extents == b.extents || *a.extents == *b.extents);
}

}  // namespace meshard
