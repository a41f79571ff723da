// SPDX-License-Identifier: Apache-2.0
// Matrix products. Every dimension has a label: batch b, rows m, columns n, contracted k.
#include "ops/rules/rank_parts.h"
#include "sharding/tensor/direct_kernel.h"

#include <ATen/ATen.h>

#include <string_view>

namespace meshard {
namespace {

char label_of(std::string_view labels, const AxisLayout& layout)
{
    return layout.is_shard() ? labels[layout.placement.dim] : '-';
}

/// The product left x right; `out_labels` lists the labels of the result. Converts the operands to matching layouts,
/// sets their local parts, and returns the result's layouts. `bias` (an operand added once, broadcast to the result)
/// may be absent.
void product(RuleCall& call, std::int64_t left_arg, std::int64_t right_arg, std::string_view left_labels,
             std::string_view right_labels, std::string_view out_labels, std::int64_t bias_arg = -1)
{
    auto left = call.tensor(left_arg), right = call.tensor(right_arg);
    auto bias = bias_arg >= 0 ? call.tensor(bias_arg) : at::Tensor();

    // A product is linear in each operand: one pending sum may stay pending if the other operand is whole.
    std::vector<at::Tensor> to_reduce;
    for (const auto axis : call.axes()) {
        const auto& l = call.layout(left, axis);
        const auto& r = call.layout(right, axis);
        const bool sums = (!l.is_partial() || l.placement.reduction == Reduction::Sum) &&
                          (!r.is_partial() || r.placement.reduction == Reduction::Sum);
        const bool one = sums && ((l.is_partial() && r.is_replicate() && distributes(right, false)) ||
                                  (l.is_replicate() && r.is_partial() && distributes(left, false)));
        if (l.is_partial() && !one) to_reduce.push_back(left);
        if (r.is_partial() && !one) to_reduce.push_back(right);
    }
    if (bias.defined() && is_sharded(bias)) to_reduce.push_back(bias);
    call.reduce(to_reduce);

    AxisLayouts result(call.num_axes());
    bool bias_counts = true;
    for (const auto axis : call.axes()) {
        const AxisLayout l = call.layout(left, axis), r = call.layout(right, axis);
        if (l.is_partial() || r.is_partial()) {
            result[axis] = {Partial(), nullptr, 1};
            bias_counts = bias_counts && call.coordinate(axis) == 0;
            continue;
        }
        if (!l.is_shard() && !r.is_shard()) continue;

        char label = l.is_shard() ? label_of(left_labels, l) : label_of(right_labels, r);
        AxisLayout cut = l.is_shard() ? l : r;
        if (l.is_shard() && r.is_shard()) {
            const char other = label_of(right_labels, r);
            if (label == other) {
                // If the same dimension is sharded in two ways, the right operand is converted to the layout of the
                // left one.
                if (!same_rows(l, r)) {
                    auto target = l;
                    target.placement.dim = r.placement.dim;
                    right = call.with_layout(right, axis, target);
                }
            } else if (left.numel() >= right.numel()) {
                right = call.with_layout(right, axis, {});  // the smaller operand is gathered
            } else {
                left = call.with_layout(left, axis, {});
                label = other;
                cut = r;
            }
        }
        const auto in_out = out_labels.find(label);
        if (in_out == std::string_view::npos) {
            result[axis] = {Partial(), nullptr, 1};
            bias_counts = bias_counts && call.coordinate(axis) == 0;
        } else {
            result[axis] = cut;
            result[axis].placement.dim = static_cast<std::int64_t>(in_out);
        }
        // The other operand, if whole, is narrowed to the matching rows.
        const auto fit = [&](at::Tensor& tensor, std::string_view labels) -> bool {
            const auto dim = labels.find(label);
            if (dim == std::string_view::npos || call.layout(tensor, axis).is_shard()) return true;
            auto target = cut;
            target.placement.dim = static_cast<std::int64_t>(dim);
            for (const auto other : call.axes()) {
                const auto& there = call.layout(tensor, other);
                if (other != axis && there.is_shard() && there.placement.dim == target.placement.dim) return false;
            }
            tensor = call.with_layout(tensor, axis, target);
            return true;
        };
        // Another axis shards this dimension already.
        if (!fit(left, left_labels) || !fit(right, right_labels)) return gathered_rule(call);
    }
    if (cut_one_dim_twice(result)) return gathered_rule(call);

    call.set_local(left_arg, at::Tensor(local_of(left)));
    call.set_local(right_arg, at::Tensor(local_of(right)));
    if (bias.defined()) {
        const auto num_dims = std::ssize(out_labels);
        for (const auto axis : call.axes()) {
            if (call.layout(bias, axis).is_shard()) {
                auto there = result[axis];
                there.placement.dim -= num_dims - bias.dim();
                const bool fits = result[axis].is_shard() && call.layout(bias, axis) == there;
                if (!fits) bias = call.with_layout(bias, axis, {});
            }
        }
        auto local = local_of(bias);
        for (const auto axis : call.axes()) {
            if (result[axis].is_shard() && call.layout(bias, axis).is_replicate()) {
                local = narrow_operand(call, local, result[axis], axis,
                                       result[axis].placement.dim - (num_dims - bias.dim()));
            }
        }
        // In a pending sum the bias is added on one rank only.
        call.set_local(bias_arg, bias_counts ? local : at::zeros_like(local));
    }
    call.run({call.spec(result)});
}

void mm(RuleCall& call)
{
    product(call, 0, 1, "mk", "kn", "mn");
}
void bmm(RuleCall& call)
{
    product(call, 0, 1, "bmk", "bkn", "bmn");
}
void addmm(RuleCall& call)
{
    product(call, 1, 2, "mk", "kn", "mn", 0);
}
void baddbmm(RuleCall& call)
{
    product(call, 1, 2, "bmk", "bkn", "bmn", 0);
}
void mv(RuleCall& call)
{
    product(call, 0, 1, "mk", "k", "m");
}
void addmv(RuleCall& call)
{
    product(call, 1, 2, "mk", "k", "m", 0);
}
void dot(RuleCall& call)
{
    product(call, 0, 1, "k", "k", "");
}

// --- direct kernels for operands that need no conversion -------------------------------------------------------------

/// The product's layout; null if an operand must be converted or is pending.
SpecPtr spec_of_product(const at::Tensor& left, const at::Tensor& right, std::string_view left_labels,
                        std::string_view right_labels, std::string_view out_labels)
{
    for (const auto* tensor : {&left, &right}) {
        if (is_sharded(*tensor) && !is_ready(*tensor)) return nullptr;
    }
    const auto& spec = spec_of(is_sharded(left) ? left : right);
    if (is_sharded(left) && is_sharded(right) && spec_of(left)->device_mesh != spec_of(right)->device_mesh)
        return nullptr;
    const AxisLayout whole;
    AxisLayouts result(spec->axes.size());
    for (std::size_t axis = 0; axis < result.size(); ++axis) {
        const auto& l = is_sharded(left) ? spec_of(left)->axes[axis] : whole;
        const auto& r = is_sharded(right) ? spec_of(right)->axes[axis] : whole;
        if (l.is_partial() || r.is_partial()) return nullptr;
        if (!l.is_shard() && !r.is_shard()) continue;
        const auto label = l.is_shard() ? label_of(left_labels, l) : label_of(right_labels, r);
        const auto fits = [&](const AxisLayout& layout, std::string_view labels) {  // sharded if it has that dimension
            return labels.find(label) == std::string_view::npos
                       ? !layout.is_shard()
                       : layout.is_shard() && label_of(labels, layout) == label;
        };
        if (!fits(l, left_labels) || !fits(r, right_labels) || (l.is_shard() && r.is_shard() && !same_rows(l, r)))
            return nullptr;
        const auto place = out_labels.find(label);
        if (place == std::string_view::npos) {
            result[axis].placement = Partial();
        } else {
            result[axis] = l.is_shard() ? l : r;
            result[axis].placement.dim = static_cast<std::int64_t>(place);
        }
    }
    if (cut_one_dim_twice(result)) return nullptr;
    return with_axes(spec, result);
}

std::optional<at::Tensor> direct_mm(const at::Tensor& left, const at::Tensor& right)
{
    const auto spec = spec_of_product(left, right, "mk", "kn", "mn");
    if (!spec) return std::nullopt;
    return fresh(at::mm(local_of(left), local_of(right)), spec);
}

/// addmm with a bias that is the same for all rows.
std::optional<at::Tensor> direct_addmm(const at::Tensor& bias, const at::Tensor& left, const at::Tensor& right,
                                       const at::Scalar& beta, const at::Scalar& alpha)
{
    if (is_sharded(bias) || bias.dim() > 1) return std::nullopt;
    const auto spec = spec_of_product(left, right, "mk", "kn", "mn");
    if (!spec || spec->has_partial() || spec->axis_of_dim(1) >= 0) return std::nullopt;
    return fresh(at::addmm(bias, local_of(left), local_of(right), beta, alpha), spec);
}

std::optional<at::Tensor> direct_bmm(const at::Tensor& left, const at::Tensor& right)
{
    const auto spec = spec_of_product(left, right, "bmk", "bkn", "bmn");
    if (!spec) return std::nullopt;
    return fresh(at::bmm(local_of(left), local_of(right)), spec);
}

const DirectRegistration product_kernels[] = {
    direct_kernel<at::_ops::mm, &direct_mm>(mm),
    direct_kernel<at::_ops::addmm, &direct_addmm>(addmm),
    direct_kernel<at::_ops::bmm, &direct_bmm>(bmm),
};

const RuleRegistration product_rules[] = {
    {"matrix products", {"aten::mm"}, mm},
    {"matrix products", {"aten::bmm"}, bmm},
    {"matrix products", {"aten::addmm"}, addmm},
    {"matrix products", {"aten::baddbmm"}, baddbmm},
    {"matrix products", {"aten::mv"}, mv},
    {"matrix products", {"aten::addmv"}, addmv},
    {"matrix products", {"aten::dot", "aten::vdot"}, dot},
};

}  // namespace
}  // namespace meshard
