// SPDX-License-Identifier: Apache-2.0
// Distances between all rows of two sets: one set is cut along its rows, the other whole.
#include "ops/rules/rank_parts.h"

#include <ATen/ATen.h>

namespace meshard {
namespace {

/// Layouts of (..., P, M), (..., R, M) and their distances (..., P, R).
struct Distances {
    AxisLayouts left, right, result;
    AxisLayouts left_gradient;
};

/// @param result   the layouts that the distances must have, for the gradient; may be null
std::optional<Distances> plan(const RuleCall& call, const at::Tensor& left, const at::Tensor& right,
                              const at::Tensor* distances)
{
    const auto n = left.dim();
    if (n < 2 || right.dim() != n || left.numel() == 0 || right.numel() == 0) return std::nullopt;
    for (std::int64_t dim = 0; dim < n - 2; ++dim) {
        if (left.size(dim) != right.size(dim)) return std::nullopt;  // broadcast
    }
    Distances d{AxisLayouts(call.num_axes()), AxisLayouts(call.num_axes()), AxisLayouts(call.num_axes()),
                AxisLayouts(call.num_axes())};
    for (const auto axis : call.axes()) {
        const auto &l = call.layout(left, axis), &r = call.layout(right, axis);
        auto cut = AxisLayout{};  // the same cut for the distances
        if (distances) {
            cut = call.layout(*distances, axis);
        } else if (l.is_shard() && l.placement.dim < n - 1) {
            const bool smaller = r.is_shard() && r.placement.dim == n - 2 && l.placement.dim == n - 2 &&
                                 left.size(n - 2) < right.size(n - 2);
            cut = smaller ? r : l;
            if (smaller) cut.placement.dim = n - 1;
        } else if (r.is_shard() && r.placement.dim < n - 1) {
            cut = r;
            if (r.placement.dim == n - 2) cut.placement.dim = n - 1;
        }
        if (!cut.is_shard()) continue;
        d.result[axis] = d.left_gradient[axis] = cut;
        if (cut.placement.dim == n - 1) {
            d.right[axis] = cut;
            d.right[axis].placement.dim = n - 2;
            d.left_gradient[axis] = {Partial(), nullptr, 1};
        } else {
            d.left[axis] = cut;
            if (cut.placement.dim < n - 2) d.right[axis] = cut;
        }
    }
    if (cut_one_dim_twice(d.left) || cut_one_dim_twice(d.right) || cut_one_dim_twice(d.result)) return std::nullopt;
    return d;
}

/// _cdist_forward(x1, x2, p, compute_mode), and _euclidean_dist(x1, x2), which cdist uses for norm 2 and more than 25
/// rows
void distances(RuleCall& call)
{
    const auto left = call.tensor(0), right = call.tensor(1);
    const auto way = plan(call, left, right, nullptr);
    if (!way) return gathered_rule(call);
    call.reduce({left, right});
    call.arg(0) = local_of(with_layouts(call, left, way->left));
    call.arg(1) = local_of(with_layouts(call, right, way->right));
    call.run({call.spec(way->result)});
}

/// _cdist_backward(grad, x1, x2, p, cdist) -> gradient of x1: a sum over the rows of x2, pending if these are cut.
void distances_backward(RuleCall& call)
{
    const auto gradient = call.tensor(0), left = call.tensor(1), right = call.tensor(2), found = call.tensor(4);
    call.reduce({gradient, left, right, found});
    const auto way = plan(call, left, right, &found);
    if (!way) return gathered_rule(call);
    call.arg(0) = local_of(with_layouts(call, gradient, way->result)).contiguous();
    call.arg(1) = local_of(with_layouts(call, left, way->left));
    call.arg(2) = local_of(with_layouts(call, right, way->right));
    call.arg(4) = local_of(with_layouts(call, found, way->result));
    call.run({call.spec(way->left_gradient)});
}

const RuleRegistration distance_rules[] = {
    {"distances", {"aten::_cdist_forward", "aten::_euclidean_dist"}, distances},
    {"distances", {"aten::_cdist_backward"}, distances_backward},
};

}  // namespace
}  // namespace meshard
