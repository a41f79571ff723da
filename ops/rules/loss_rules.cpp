// SPDX-License-Identifier: Apache-2.0
// Losses that reduce inside one operator: op(input, target, reduction, ...), and their backward.
#include "ops/rules/placement_algebra.h"
#include "ops/rules/pointwise_rule.h"
#include "ops/rules/rank_parts.h"
#include "sharding/ranks/type_limits.h"

#include <ATen/ATen.h>

namespace meshard {
namespace {

/// Converts input and target to one layout: that of the one that is cut.
SpecPtr align_layouts(RuleCall& call, std::int64_t input_arg, std::int64_t target_arg)
{
    auto input = call.tensor(input_arg), target = call.tensor(target_arg);
    if (input.sizes() != target.sizes()) {
        call.refuse("input and target have different shapes", "Expand the smaller one to the shape of the other");
    }
    call.reduce({input, target});
    AxisLayouts axes(call.num_axes());
    for (const auto axis : call.axes()) {
        axes[axis] = call.layout(input, axis).is_shard() ? call.layout(input, axis) : call.layout(target, axis);
        input = call.with_layout(input, axis, axes[axis]);
        target = call.with_layout(target, axis, axes[axis]);
    }
    call.set_local(input_arg, at::Tensor(local_of(input)));
    call.set_local(target_arg, at::Tensor(local_of(target)));
    return call.spec(axes);
}

/// The mean is the sum over all ranks divided by the number of entries of the whole, not a mean of means.
void loss(RuleCall& call)
{
    const auto count = call.tensor(0).numel();
    const auto reduction = call.arg(2).toInt();
    const auto spec = align_layouts(call, 0, 1);
    if (reduction == at::Reduction::None) return call.run({spec});

    call.arg(2) = static_cast<std::int64_t>(at::Reduction::None);
    const auto entries = call.run_local()[0].toTensor();
    // The sum of numbers in half precision may exceed what their type holds.
    auto total = at::sum(entries, sum_type(entries.scalar_type()));
    if (reduction == at::Reduction::Mean) total = total.div_(static_cast<double>(count));
    total = total.to(entries.scalar_type());
    auto axes = spec->axes;
    for (auto& axis : axes) {
        if (axis.is_shard()) axis = {Partial(), nullptr, 1};
    }
    call.push({wrap(total, call.spec(axes))});
}

/// op_backward(grad_output, input, target, reduction, ...): the gradient of a mean is divided by the number of entries
/// of the whole.
void loss_backward(RuleCall& call)
{
    const auto count = call.tensor(1).numel();
    const auto reduction = call.arg(3).toInt();
    auto gradient = call.tensor(0);
    const bool by_entries = gradient.sizes() == call.tensor(1).sizes();  // otherwise a number, or a tensor to broadcast
    if (!by_entries && gradient.dim() > 0) return gathered_rule(call);
    const auto spec = align_layouts(call, 1, 2);
    call.reduce({gradient});
    for (const auto axis : call.axes()) {
        if (by_entries) gradient = call.with_layout(gradient, axis, spec->axes[axis]);
    }
    auto local = at::Tensor(local_of(gradient));
    if (reduction == at::Reduction::Mean) {
        local = local.div(static_cast<double>(count));
        call.arg(3) = static_cast<std::int64_t>(at::Reduction::Sum);
    }
    call.set_local(0, local);
    call.run({spec});
}

/// Converts arguments of the same shape to one layout, also those with a single entry, which pointwise rules would
/// broadcast.
void align(RuleCall& call, c10::ArrayRef<std::int64_t> arguments)
{
    AxisLayouts axes(call.num_axes());
    for (const auto i : arguments) {
        if (call.tensor(i).sizes() != call.tensor(arguments.back()).sizes()) return;  // the operator itself throws
        for (const auto axis : call.axes()) {
            if (const auto& layout = call.layout(call.tensor(i), axis); layout.is_shard() && !axes[axis].is_shard())
                axes[axis] = layout;
        }
    }
    if (cut_one_dim_twice(axes)) return;
    for (const auto i : arguments) {
        call.reduce({call.tensor(i)});
        call.arg(i) = with_layouts(call, call.tensor(i), axes);
    }
}

/// Losses with weights that broadcast, op(input, target, ..., reduction): computed entry by entry, then summed with the
/// input's layout.
void loss_by_entries(RuleCall& call)
{
    const auto last = call.num_args() - 1;
    const auto reduction = call.arg(last).toInt();
    if (reduction == at::Reduction::None) {
        align(call, {0, 1});
        return pointwise_rule(call);
    }
    const auto entries = [&] {
        const auto input = call.tensor(0), target = call.tensor(1);
        if (call.name() == "aten::soft_margin_loss") return at::soft_margin_loss(input, target, at::Reduction::None);
        if (call.name() == "aten::binary_cross_entropy")
            return at::binary_cross_entropy(input, target, call.tensor(2), at::Reduction::None);
        return at::binary_cross_entropy_with_logits(input, target, call.tensor(2), call.tensor(3), at::Reduction::None);
    }();
    call.finish({reduction == at::Reduction::Mean ? entries.mean() : entries.sum()});
}

/// op_backward(grad_output, input, target, ..., reduction)
void loss_by_entries_backward(RuleCall& call)
{
    const auto last = call.num_args() - 1;
    if (call.arg(last).toInt() == at::Reduction::Mean) {
        call.arg(0) = call.tensor(0).div(static_cast<double>(call.tensor(1).numel()));
        call.arg(last) = static_cast<std::int64_t>(at::Reduction::Sum);
    }
    align(call, {1, 2});
    if (call.arg(last).toInt() == at::Reduction::None) align(call, {0, 1, 2});
    pointwise_rule(call);
}

const RuleRegistration loss_rules[] = {
    {"losses",
     {"aten::binary_cross_entropy", "aten::binary_cross_entropy_with_logits", "aten::soft_margin_loss"},
     loss_by_entries},
    {"losses", {"aten::binary_cross_entropy_backward", "aten::soft_margin_loss_backward"}, loss_by_entries_backward},
    {"losses", {"aten::mse_loss", "aten::smooth_l1_loss", "aten::huber_loss"}, loss},
};
const RuleRegistration
    r_loss_backward("losses", {"aten::mse_loss_backward", "aten::smooth_l1_loss_backward", "aten::huber_loss_backward"},
                    loss_backward);

}  // namespace
}  // namespace meshard
