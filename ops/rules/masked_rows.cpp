// SPDX-License-Identifier: Apache-2.0
#include "ops/rules/masked_rows.h"

#include "ops/rules/rank_parts.h"

#include <ATen/ATen.h>

#include <optional>

namespace meshard {
namespace {

/// A mask over the dimensions `dim` to `dim + mask.dim()` of a tensor, and the layouts of both for which each rank
/// selects from its own entries.
struct Masking {
    at::Tensor mask;
    std::int64_t dim = 0;
    // the layout of `result` on `row_axis` follows from the counts.
    AxisLayouts tensor_axes, mask_axes, result;
    std::int64_t row_axis = -1;  // axis that cuts the dimensions of the mask
};

std::optional<Masking> masking(const RuleCall& call, const at::Tensor& tensor, const c10::IValue& indices)
{
    Masking m;
    std::int64_t dim = 0;
    for (const auto& element : indices.toListRef()) {
        if (element.isTensor() && element.toTensor().defined()) {
            if (m.mask.defined()) return std::nullopt;
            m.mask = element.toTensor();
            m.dim = dim;
        }
        ++dim;
    }
    if (!m.mask.defined() || (m.mask.scalar_type() != at::kBool && m.mask.scalar_type() != at::kByte) ||
        m.mask.dim() == 0)
        return std::nullopt;
    const auto covered = m.mask.dim();
    if (m.dim + covered > tensor.dim() || tensor.sizes().slice(m.dim, covered) != m.mask.sizes()) return std::nullopt;

    m.tensor_axes = without_pending(layouts_of(call, tensor));
    m.mask_axes.resize(m.tensor_axes.size());
    m.result = m.tensor_axes;
    for (std::size_t axis = 0; axis < m.tensor_axes.size(); ++axis) {
        const auto& cut = m.tensor_axes[axis];
        if (!cut.is_shard()) continue;
        const auto d = cut.placement.dim;
        if (d >= m.dim + covered) {
            m.result[axis].placement.dim = d - covered + 1;
        } else if (d >= m.dim) {
            if (m.row_axis >= 0 || cut.blocks > 1 ||
                c10::multiply_integers(tensor.sizes().slice(m.dim, d - m.dim)) != 1)
                return std::nullopt;
            m.row_axis = static_cast<std::int64_t>(axis);
            m.mask_axes[axis] = cut;
            m.mask_axes[axis].placement.dim -= m.dim;
        }
    }
    return m;
}

AxisLayout found_layout(const RuleCall& call, const Masking& m, std::int64_t count)
{
    auto extents = std::make_shared<Extents>(call.device_mesh()->group(m.row_axis).all_gather_integers(count));
    return {Shard(m.dim), std::move(extents), 1};
}

c10::List<std::optional<at::Tensor>> own_indices(const RuleCall& call, const Masking& m)
{
    c10::List<std::optional<at::Tensor>> indices;
    for (std::int64_t d = 0; d < m.dim; ++d) indices.push_back(std::nullopt);
    indices.push_back(local_of(with_layouts(call, m.mask, m.mask_axes)));
    return indices;
}

}  // namespace

bool index_by_mask(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    auto m = masking(call, tensor, call.arg(1));
    if (!m) return false;
    call.reduce({tensor, m->mask});
    const auto found = at::index(local_of(tensor), own_indices(call, *m));
    if (m->row_axis >= 0) m->result[m->row_axis] = found_layout(call, *m, found.size(m->dim));
    call.finish({wrap(found, call.spec(m->result))});
    return true;
}

bool index_put_by_mask(RuleCall& call)
{
    const auto tensor = call.tensor(0), values = call.tensor(2);
    auto m = masking(call, tensor, call.arg(1));
    if (!m) return false;
    const auto result_dims = tensor.dim() - m->mask.dim() + 1;
    // Counted from the last, as in broadcasting.
    const auto position_of = [&](std::int64_t dim) { return values.dim() - result_dims + dim; };
    const auto indices = own_indices(call, *m);
    if (m->row_axis >= 0) {
        m->result[m->row_axis] = found_layout(call, *m, indices.get(m->dim)->sum().item<std::int64_t>());
    }
    for (auto& axis : m->result) {
        if (!axis.is_shard()) continue;
        const auto position = position_of(axis.placement.dim);
        if (position < 0 || values.size(position) == 1)
            axis = {};
        else if (values.size(position) != axis.blocks * axis.total())
            return false;  // the operator itself throws
        else
            axis.placement.dim = position;
    }
    call.reduce({tensor, values, m->mask});
    const auto part = local_of(with_layouts(call, values, m->result));
    const bool in_place = call.mutated_arg() == 0;
    const auto target = in_place ? local_of(tensor) : local_of(tensor).clone();
    target.index_put_(indices, part, call.arg(3).toBool());
    if (in_place)
        call.finish({tensor});
    else
        call.finish({wrap(target, call.spec(m->tensor_axes))});
    return true;
}

}  // namespace meshard
