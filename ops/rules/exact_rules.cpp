// SPDX-License-Identifier: Apache-2.0
// Rules that are called before the ordinary ones in exact mode: no result depends on how rows are cut.
#include "ops/rules/placement_algebra.h"
#include "partition/lists.h"
#include "sharding/ranks/type_limits.h"
#include "sharding/tensor/boxed_arguments.h"
#include "sharding/tensor/exact_mode.h"
#include "sharding/tensor/fixed_order.h"
#include "sharding/tensor/redistribute.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string_view>

namespace meshard {
namespace {

bool any_cut(const RuleCall& call)
{
    for (const auto& tensor : call.tensors()) {
        if (is_sharded(tensor) && spec_of(tensor)->has_shard()) return true;
    }
    return false;
}

/// The whole with the strides of the caller's tensor, on which the order of a kernel's sums may depend.
at::Tensor whole_as_shown(const at::Tensor& tensor, const SpecPtr& replicated)
{
    if (!is_sharded(tensor) || !spec_of(tensor)->has_shard()) return tensor;
    const auto whole = local_of(convert(tensor, replicated));
    const auto copy = tensor.is_non_overlapping_and_dense()
                          ? at::empty_strided(whole.sizes(), tensor.strides(), whole.options())
                          : at::empty(whole.sizes(), whole.options());
    return wrap(copy.copy_(whole), replicated);
}

/// Every rank computes the whole; on devices in a fixed order.
bool gather_whole(RuleCall& call)
{
    const auto form = is_on_device(call) ? find_fixed_order(call.name()) : nullptr;
    const bool is_cut = any_cut(call);
    if (call.is_random() || (!is_cut && !form)) return false;
    const auto& arguments = call.schema().arguments();
    for (std::int64_t i = 0; i < call.num_args(); ++i) {
        if (arguments[i].alias_info()) continue;
        map_tensors(call.arg(i), [&](const at::Tensor& tensor) { return whole_as_shown(tensor, call.replicated()); });
    }
    if (is_cut) call.note_gathering();
    if (!form) {
        gathered_rule(call);
        return true;
    }
    for (std::int64_t i = 0; i < call.num_args(); ++i)
        map_tensors(call.arg(i), [](const at::Tensor& tensor) { return local_of(tensor); });
    torch::jit::Stack results;
    for (const auto& result : form(call)) results.push_back(wrap(result, call.replicated()));
    call.finish(std::move(results));
    return true;
}

/// `gather_whole` if `input` is cut along dimension `first` or a later one.
bool gather_from(RuleCall& call, const at::Tensor& input, std::int64_t first)
{
    auto dims = numbers_from<std::int64_t>(first, std::max<std::int64_t>(0, input.dim() - first));
    return cuts_any(call, input, dims) && gather_whole(call);
}

/// `gather_whole` if the tensor is cut at or after the first dimension in argument `arg` (none: all dimensions): the
/// order of a kernel's sums may depend on the number of adjacent lines.
bool gather_along(RuleCall& call, std::int64_t tensor, std::int64_t arg)
{
    const auto input = call.tensor(tensor);
    std::vector<std::int64_t> dims;
    if (call.arg(arg).isInt())
        dims = {call.arg(arg).toInt()};
    else if (call.arg(arg).isIntList())
        dims = call.arg(arg).toIntVector();
    auto first = dims.empty() ? 0 : input.dim();
    for (const auto dim : dims) first = std::min(first, from_front(dim, input.dim()));
    return gather_from(call, input, first);
}

/// native_layer_norm(input, normalized_shape, ...): gathers if lines are cut; each line is normalised by itself.
bool gather_lines(RuleCall& call)
{
    const auto input = call.tensor(0);
    return gather_from(call, input, input.dim() - std::ssize(call.arg(1).toIntList()));
}

bool gather_along_first(RuleCall& call)
{
    return gather_along(call, 0, 1);
}
bool gather_along_second(RuleCall& call)
{
    return gather_along(call, 0, 2);
}

/// Groups of the axes that cut `tensor` along one of `dims` (all if empty), and the layouts after the sum over them.
std::vector<const RankGroup*> summed_groups(const RuleCall& call, const at::Tensor& tensor,
                                            c10::ArrayRef<std::int64_t> dims)
{
    std::vector<const RankGroup*> groups;
    for (const auto axis : call.axes()) {
        const auto& layout = call.layout(tensor, axis);
        const bool summed = layout.is_shard() && (dims.empty() || contains(dims, layout.placement.dim));
        if (summed) groups.push_back(&call.device_mesh()->group(axis));
    }
    return groups;
}

/// sum(self), sum(self, dims?, keepdim), and mean: `is_mean` divides by the number of entries of the whole.
bool sum_or_mean(RuleCall& call, bool is_mean)
{
    const auto tensor = call.tensor(0);
    const bool has_dims = call.num_args() == 4;
    const auto dtype_arg = has_dims ? 3 : 1;
    const auto type = call.arg(dtype_arg).isNone() ? tensor.scalar_type() : call.arg(dtype_arg).toScalarType();
    if (at::isComplexType(type)) return gather_whole(call);
    if (!at::isFloatingType(type) || !any_cut(call)) return false;
    std::vector<std::int64_t> dims;
    if (has_dims && call.arg(1).isIntList()) dims = call.arg(1).toIntVector();
    for (auto& dim : dims) dim = from_front(dim, tensor.dim());
    const bool keepdim = has_dims && call.arg(2).toBool();
    std::int64_t count = 1;
    for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
        if (dims.empty() || contains(dims, dim)) count *= tensor.size(dim);
    }
    const auto axes = without_pending(reduced_layouts(layouts_of(call, tensor), dims, keepdim, Reduction::Sum));
    auto total = exact_sum(local_of(tensor).to(type).to(sum_type(type)), dims, keepdim,
                           std::max<std::int64_t>(1, count), summed_groups(call, tensor, dims));
    if (is_mean) total = total.div(static_cast<double>(count));
    call.finish({wrap(total.to(type), call.spec(axes))});
    return true;
}

bool sum_exactly(RuleCall& call)
{
    return sum_or_mean(call, false);
}
bool mean_exactly(RuleCall& call)
{
    return sum_or_mean(call, true);
}

/// op(input, target, reduction, ...): entry by entry, then an exact sum.
bool loss_exactly(RuleCall& call)
{
    const auto input = call.tensor(0), target = call.tensor(1);
    const auto reduction = call.arg(2).toInt();
    if (reduction == at::Reduction::None || !any_cut(call)) return false;
    if (input.sizes() != target.sizes() || !is_sharded(input) || !spec_of(input)->has_shard())
        return gather_whole(call);
    auto there = target;
    for (const auto axis : call.axes()) there = call.with_layout(there, axis, call.layout(input, axis));
    const auto groups = summed_groups(call, input, {});
    const auto count = input.numel();
    call.set_local(0, at::Tensor(local_of(input)));
    call.set_local(1, at::Tensor(local_of(there)));
    call.arg(2) = static_cast<std::int64_t>(at::Reduction::None);
    const auto each = call.run_local()[0].toTensor();
    auto total = exact_sum(each.to(sum_type(each.scalar_type())), {}, false, std::max<std::int64_t>(1, count), groups);
    if (reduction == at::Reduction::Mean) total = total.div(static_cast<double>(count));
    call.push({wrap(total.to(each.scalar_type()), call.replicated())});
    return true;
}

/// Labels as in the ordinary products: batch b, rows m, columns n, contracted k.
bool product(RuleCall& call, std::int64_t left_arg, std::int64_t right_arg, std::string_view left_labels,
             std::string_view right_labels, std::string_view out_labels, std::int64_t bias_arg = -1)
{
    auto left = call.tensor(left_arg), right = call.tensor(right_arg);
    if (!left.is_floating_point() || !any_cut(call)) return false;
    if (left.scalar_type() == at::kDouble) return gather_whole(call);

    AxisLayouts result(call.num_axes());
    std::vector<const RankGroup*> groups;
    for (const auto axis : call.axes()) {
        const AxisLayout l = call.layout(left, axis), r = call.layout(right, axis);
        if (!l.is_shard() && !r.is_shard()) continue;
        const auto cut = l.is_shard() ? l : r;
        const auto label = l.is_shard() ? left_labels[l.placement.dim] : right_labels[r.placement.dim];
        const auto fit = [&](at::Tensor& tensor, std::string_view labels) {
            AxisLayout target;
            if (const auto dim = labels.find(label); dim != std::string_view::npos) {
                target = cut;
                target.placement.dim = static_cast<std::int64_t>(dim);
            }
            tensor = call.with_layout(tensor, axis, target);
        };
        fit(left, left_labels);
        fit(right, right_labels);
        const auto in_out = out_labels.find(label);
        if (in_out == std::string_view::npos) {
            groups.push_back(&call.device_mesh()->group(axis));
            continue;
        }
        result[axis] = cut;
        result[axis].placement.dim = static_cast<std::int64_t>(in_out);
        for (std::int64_t other = 0; other < axis; ++other) {
            if (result[other].is_shard() && result[other].placement.dim == result[axis].placement.dim)
                return gather_whole(call);
        }
    }
    auto out = exact_product(local_of(left), local_of(right),
                             left.size(static_cast<std::int64_t>(left_labels.find('k'))), groups);
    if (bias_arg >= 0) {
        auto bias = call.tensor(bias_arg);
        for (const auto axis : call.axes()) bias = call.with_layout(bias, axis, {});
        auto local = local_of(bias);
        const auto missing = std::ssize(out_labels) - local.dim();
        for (const auto axis : call.axes()) {
            if (result[axis].is_shard())
                local = narrow_operand(call, local, result[axis], axis, result[axis].placement.dim - missing);
        }
        const auto beta = call.arg(3).toScalar(), alpha = call.arg(4).toScalar();
        if (alpha.toDouble() != 1) out = out.mul(alpha);
        out = out.add(beta.toDouble() == 1 ? local : local.mul(beta));
    }
    call.finish({wrap(out, call.spec(result))});
    return true;
}

bool mm_exactly(RuleCall& call)
{
    return product(call, 0, 1, "mk", "kn", "mn");
}
bool bmm_exactly(RuleCall& call)
{
    return product(call, 0, 1, "bmk", "bkn", "bmn");
}
bool addmm_exactly(RuleCall& call)
{
    return product(call, 1, 2, "mk", "kn", "mn", 0);
}
bool baddbmm_exactly(RuleCall& call)
{
    return product(call, 1, 2, "bmk", "bkn", "bmn", 0);
}

const ExactRuleRegistration exact_rules[] = {
    {{"aten::sum", "aten::sum.dim_IntList"}, sum_exactly},
    {{"aten::mean", "aten::mean.dim"}, mean_exactly},
    {{"aten::mse_loss", "aten::smooth_l1_loss", "aten::huber_loss"}, loss_exactly},
    {{"aten::mm"}, mm_exactly},
    {{"aten::bmm"}, bmm_exactly},
    {{"aten::addmm"}, addmm_exactly},
    {{"aten::baddbmm"}, baddbmm_exactly},
    {{"aten::_softmax", "aten::_log_softmax", "aten::_safe_softmax", "aten::logsumexp", "aten::prod.dim_int",
      "aten::var.correction", "aten::std.correction", "aten::var_mean.correction", "aten::std_mean.correction",
      "aten::nansum"},
     gather_along_first},
    {{"aten::_softmax_backward_data", "aten::_log_softmax_backward_data", "aten::linalg_vector_norm"},
     gather_along_second},
    {{"aten::native_layer_norm"}, gather_lines},
    {{"aten::norm", "aten::prod", "aten::unfold_backward", "aten::embedding_dense_backward", "aten::index_add",
      "aten::index_add_", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::scatter_add",
      "aten::scatter_add_", "aten::scatter_reduce", "aten::scatter_reduce_"},
     gather_whole},
};
// All operators of these families add over neighbours, samples or lines, in an order that may depend on the sharding.
const ExactFamilyRegistration r_families({"convolution", "distances", "Fourier transforms", "gathered", "interpolation",
                                          "losses", "matrix products", "normalisation", "padding", "pooling",
                                          "rearrangement", "running sums"},
                                         gather_whole);

}  // namespace
}  // namespace meshard
