// SPDX-License-Identifier: Apache-2.0
// Normalisation over dimensions that every rank holds whole.
#include <ATen/ATen.h>

#include "ops/placement_algebra.h"

namespace meshard {
namespace {

bool normalized_dims_are_cut(const RuleCall& call, const at::Tensor& input, std::size_t num_normalized)
{
    std::vector<std::int64_t> dims;
    for (std::size_t i = 0; i < num_normalized; ++i) dims.push_back(input.dim() - 1 - static_cast<std::int64_t>(i));
    return cuts_any(call, input, dims);
}

/// native_layer_norm(input, normalized_shape, weight?, bias?, eps) -> output, mean, rstd: all cut as the input.
void layer_norm(RuleCall& call)
{
    const auto input = call.tensor(0);
    if (normalized_dims_are_cut(call, input, call.arg(1).toIntVector().size())) return gathered_rule(call);
    call.reduce(call.tensors());
    const auto spec = is_sharded(input) ? spec_of(input) : call.replicated();
    for (const auto i : {2, 3}) {
        if (call.tensor(i).defined() && is_sharded(call.tensor(i)) && spec_of(call.tensor(i))->has_shard()) return gathered_rule(call);
    }
    call.make_local();
    call.run({spec});
}

/// native_layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, weight?, bias?, output_mask)
///   -> grad_input as the input; grad_weight and grad_bias are sums over rows, pending where rows are cut.
void layer_norm_backward(RuleCall& call)
{
    auto gradient = call.tensor(0);
    const auto input = call.tensor(1);
    if (normalized_dims_are_cut(call, input, call.arg(2).toIntVector().size())) return gathered_rule(call);
    call.reduce(call.tensors());
    for (std::int64_t axis = 0; axis < call.num_axes(); ++axis) gradient = call.with_layout(gradient, axis, call.layout(input, axis));
    const auto spec = is_sharded(input) ? spec_of(input) : call.replicated();
    auto sums = spec->axes;
    for (auto& axis : sums) {
        if (axis.is_shard()) axis = {Partial(), nullptr, 1};
    }
    const auto weight_spec = call.spec(sums);
    call.set_local(0, at::Tensor(local_of(gradient)));
    call.make_local();
    call.run({spec, weight_spec, weight_spec});
}

const RuleRegistration r_layer_norm("normalisation", {"aten::native_layer_norm"}, layer_norm);
const RuleRegistration r_layer_norm_backward("normalisation", {"aten::native_layer_norm_backward"}, layer_norm_backward);

}  // namespace
}  // namespace meshard
