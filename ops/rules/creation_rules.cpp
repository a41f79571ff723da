// SPDX-License-Identifier: Apache-2.0
// New tensors with the shape of a sharded one.
#include "ops/rules/placement_algebra.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

namespace meshard {
namespace {

/// zeros_like and others: the layout of the model tensor, with Replicate in place of Partial.
void like(RuleCall& call)
{
    call.keep_strides();
    const auto axes = without_pending(layouts_of(call, call.tensor(0)));
    call.make_local();
    call.run({call.spec(axes)});
}

/// new_zeros(self, size) and others, with type and device of self: the layout of self if the size is self's, else
/// Replicate.
void new_tensor(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    const auto size = call.arg(1).toIntVector();
    const auto spec = tensor.sizes() == c10::IntArrayRef(size) ? call.spec(without_pending(layouts_of(call, tensor)))
                                                               : call.replicated();
    call.make_local();
    call.arg(1) = spec->local_shape(size);
    call.run({spec});
}

/// new_empty_strided(self, size, stride, ...): autograd copies gradients into such tensors. With self's shape the
/// result gets self's layout, pending sums included, so that the copy sends nothing.
void new_empty_strided(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    const auto size = call.arg(1).toIntVector(), stride = call.arg(2).toIntVector();
    const auto spec = tensor.sizes() == c10::IntArrayRef(size) ? spec_of(tensor) : call.replicated();
    std::vector<std::int64_t> order(size.size());  // dimensions in the order of memory, from the outermost
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](std::int64_t a, std::int64_t b) { return stride[a] > stride[b]; });
    const auto shape = spec->local_shape(size);
    std::vector<std::int64_t> local_stride(shape.size());
    std::int64_t step = 1;
    for (auto d = order.rbegin(); d != order.rend(); ++d) {
        local_stride[*d] = step;
        step *= std::max<std::int64_t>(shape[*d], 1);
    }
    call.make_local();
    call.arg(1) = shape;
    call.arg(2) = local_stride;
    auto local = call.run_local()[0].toTensor();
    call.push({wrap(std::move(local), spec, stride)});
}

const RuleRegistration creation_rules[] = {
    {"creation", {"aten::empty_like", "aten::zeros_like", "aten::ones_like", "aten::full_like"}, like},
    {"creation", {"aten::new_zeros", "aten::new_ones", "aten::new_full", "aten::new_empty"}, new_tensor},
    {"creation", {"aten::new_empty_strided"}, new_empty_strided},
};

}  // namespace
}  // namespace meshard
