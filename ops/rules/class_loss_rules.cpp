// SPDX-License-Identifier: Apache-2.0
// Negative log-likelihood of classes (cross entropy), over rows or pixels, and its gradient.
#include "ops/rules/rank_parts.h"

#include <ATen/ATen.h>

namespace meshard {
namespace {

/// Input (N, C, ...) with all classes on every rank, and the target (N, ...) in a matching layout.
struct Rows {
    at::Tensor input;
    AxisLayouts axes, target_axes;
    at::Tensor target;  // local
};

/// The target has the input's shape without the classes; LibTorch's kernel sees the ranks' parts alone.
void check_shapes(const RuleCall& call, const at::Tensor& input, const at::Tensor& target, const at::Tensor& weight)
{
    auto shape = input.sizes().vec();
    shape.erase(shape.begin() + 1);
    TORCH_CHECK(target.sizes() == shape, call.name(), ": expected a target of shape ", c10::IntArrayRef(shape),
                " for an input of shape ", input.sizes(), ", found ", target.sizes(), ".");
    TORCH_CHECK(!weight.defined() || weight.numel() == input.size(1), call.name(), ": expected ", input.size(1),
                " weights, one a class, found shape ", weight.defined() ? weight.sizes() : c10::IntArrayRef(), ".");
}

/// LibTorch's kernel finds a class that does not exist in the rows that it gets. Where each rank has all targets, each
/// looks at all, so that none waits for one that has ended. On GPUs the kernel ends the process.
void check_classes(const at::Tensor& input, const at::Tensor& target, std::int64_t ignored)
{
    if ((is_sharded(target) && spec_of(target)->has_shard()) || !target.is_cpu() || target.numel() == 0) return;
    const auto& classes = local_of(target);
    const auto wrong = classes.ne(ignored).logical_and_(classes.lt(0).logical_or_(classes.ge(input.size(1))));
    TORCH_CHECK_INDEX(!wrong.any().item<bool>(), "Target ", classes.masked_select(wrong)[0].item<std::int64_t>(),
                      " is out of bounds.");
}

Rows rows_of(const RuleCall& call, const at::Tensor& input, const at::Tensor& target)
{
    Rows rows;
    auto aligned = is_sharded(input) ? input : wrap(input, call.replicated());
    aligned = with_whole_lines(call, aligned, 1);
    // A replicated input is narrowed to the target's layout.
    auto axes = layouts_of(call, aligned);
    for (const auto axis : call.axes()) {
        if (!axes[axis].is_replicate() || !call.layout(target, axis).is_shard()) continue;
        axes[axis] = call.layout(target, axis);
        if (axes[axis].placement.dim > 0) ++axes[axis].placement.dim;
        if (cut_one_dim_twice(axes)) axes[axis] = {};
    }
    rows.input = with_layouts(call, aligned, axes);
    rows.axes = axes;
    rows.target_axes = map_dims(axes, [](std::int64_t dim) { return dim > 1 ? dim - 1 : dim; });
    rows.target = local_of(with_layouts(call, target, rows.target_axes)).contiguous();
    return rows;
}

at::Tensor whole_of(const RuleCall& call, const at::Tensor& tensor)
{
    return tensor.defined() ? local_of(with_layouts(call, tensor, AxisLayouts(call.num_axes()))) : tensor;
}

/// nll_loss_forward(self, target, weight?, reduction, ignore_index) -> loss, total_weight. The sums of loss and weights
/// over all ranks are reduced in one message.
void nll_loss(RuleCall& call)
{
    const auto input = call.tensor(0);
    if (input.dim() < 2 || input.numel() == 0) return gathered_rule(call);
    const auto reduction = call.arg(3).toInt();
    check_shapes(call, input, call.tensor(1), call.tensor(2));
    call.reduce(call.tensors());
    check_classes(input, call.tensor(1), call.arg(4).toInt());
    const auto rows = rows_of(call, input, call.tensor(1));
    call.arg(0) = local_of(rows.input).contiguous();
    call.arg(1) = rows.target;
    if (call.tensor(2).defined()) call.arg(2) = whole_of(call, call.tensor(2));
    if (reduction == at::Reduction::None) return call.run({call.spec(rows.target_axes), call.replicated()});

    // The ranks' sums have a wide type and are rounded once.
    const auto type = input.scalar_type();
    const auto options = local_of(rows.input).options().dtype(sum_type(type));
    call.arg(0) = local_of(rows.input).to(options).contiguous();
    if (call.tensor(2).defined()) call.arg(2) = call.tensor(2).to(options);
    call.arg(3) = static_cast<std::int64_t>(at::Reduction::Sum);
    auto results = call.run_local();
    auto sums =
        rows.target.numel() > 0 ? at::stack({results[0].toTensor(), results[1].toTensor()}) : at::zeros({2}, options);
    for (const auto axis : call.axes()) {
        if (rows.axes[axis].is_shard()) sum_over_axes(call, {axis}, sums);
    }
    const auto loss = reduction == at::Reduction::Mean ? sums[0] / sums[1] : sums[0].clone();
    call.push({wrap(loss.to(type), call.replicated()), wrap(sums[1].clone().to(type), call.replicated())});
}

/// nll_loss_backward(grad_output, self, target, weight?, reduction, ignore_index, total_weight)
void nll_loss_backward(RuleCall& call)
{
    const auto input = call.tensor(1);
    if (input.dim() < 2 || input.numel() == 0) return gathered_rule(call);
    call.reduce(call.tensors());
    const auto before = layouts_of(call, input);
    const auto rows = rows_of(call, input, call.tensor(2));
    const bool each = call.arg(4).toInt() == at::Reduction::None;
    call.arg(0) =
        each ? local_of(with_layouts(call, call.tensor(0), rows.target_axes)) : whole_of(call, call.tensor(0));
    call.arg(1) = local_of(rows.input).contiguous();
    call.arg(2) = rows.target;
    if (call.tensor(3).defined()) call.arg(3) = whole_of(call, call.tensor(3));
    call.arg(6) = whole_of(call, call.tensor(6));
    const auto gradient = call.run_local()[0].toTensor();
    call.push({with_layouts(call, wrap(gradient, call.spec(rows.axes)), is_sharded(input) ? before : rows.axes)});
}

const RuleRegistration class_loss_rules[] = {
    {"losses", {"aten::nll_loss_forward", "aten::nll_loss2d_forward"}, nll_loss},
    {"losses", {"aten::nll_loss_backward", "aten::nll_loss2d_backward"}, nll_loss_backward},
};

}  // namespace
}  // namespace meshard
