// SPDX-License-Identifier: Apache-2.0
// Gathering and writing rows by index: index_select, index, embeddings.
#include "ops/rules/own_rows.h"
#include "ops/rules/rank_parts.h"
#include "partition/lists.h"
#include "sharding/tensor/boxed_arguments.h"
#include "sharding/tensor/rule_table.h"

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

/// index(self, {..., mask}) in which every rank selects from its own entries, and the results have the order of the
/// whole: the dimensions of the mask must be cut along the first one with more than one entry, or not at all. Completes
/// the call, or returns false and changes nothing. Collective: one small message of counts.
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

/// The same as `index_by_mask` for index_put(self, {..., mask}, values, accumulate) and its in-place forms.
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

/// Gathers the rows `index` (whole on every rank of `axis`) along `dim` of a tensor that `axis` cuts along it: rows
/// that this rank holds, zeros for the others: negative ones, since a row's -0 would become 0 in a sum with 0.
at::Tensor gather_local_rows(const RuleCall& call, const at::Tensor& local, const AxisLayout& layout, std::int64_t axis,
                             std::int64_t dim, const at::Tensor& index)
{
    const auto own = own_rows(layout, call.coordinate(axis), index);
    auto shape = local.sizes().vec();
    shape[dim] = index.numel();
    const auto nothing = nothing_added(local);
    if (local.size(dim) == 0) return at::full(shape, nothing, local.options());
    std::vector<std::int64_t> along(local.dim(), 1);
    along[dim] = index.numel();
    return local.index_select(dim, own.here).masked_fill_(own.held.logical_not().view(along), nothing);
}

/// Layouts of `source` (rows along `dim`) and of an index of any shape with which rows can be gathered locally, and of
/// the result, in which the index's dimensions replace `dim`. If the rows themselves are cut, the result is a pending
/// sum.
struct Picking {
    AxisLayouts index, result;
    std::int64_t row_axis = -1;
};

Picking picking(const RuleCall& call, const at::Tensor& source, std::int64_t dim, const at::Tensor& index)
{
    Picking p{AxisLayouts(call.num_axes()), AxisLayouts(call.num_axes()), -1};
    for (const auto axis : call.axes()) {
        const auto& rows = call.layout(source, axis);
        const auto& cut = call.layout(index, axis);
        if (rows.is_shard() && rows.placement.dim == dim) {
            p.row_axis = axis;
            p.result[axis] = {Partial(), nullptr, 1};
        } else if (rows.is_shard()) {
            p.result[axis] = rows;
            if (rows.placement.dim > dim) p.result[axis].placement.dim += index.dim() - 1;
        } else if (cut.is_shard()) {
            p.index[axis] = p.result[axis] = cut;
            p.result[axis].placement.dim += dim;
        }
    }
    return p;
}

/// This rank's rows of `index` along `dim` of its part; a bad index is an error where a rank holds nothing, too.
at::Tensor picked_rows(const RuleCall& call, const Picking& p, const at::Tensor& tensor, std::int64_t dim,
                       const at::Tensor& index)
{
    const auto& local = local_of(tensor);
    if (p.row_axis >= 0) return gather_local_rows(call, local, call.layout(tensor, p.row_axis), p.row_axis, dim, index);
    if (local.numel() == 0) check_positions(index, local.size(dim));
    return local.index_select(dim, index);
}

/// index_select(self, dim, index)
void index_select(RuleCall& call)
{
    const auto tensor = call.tensor(0), index = call.tensor(2);
    if (tensor.dim() == 0 || index.dim() != 1 || tensor.numel() == 0) return gathered_rule(call);
    const auto type = tensor.scalar_type();  // of some LibTorch moves numbers, but does not compute with them
    if (c10::isBarebonesUnsignedType(type) || c10::isFloat8Type(type)) return gathered_rule(call);
    const auto dim = from_front(call.arg(1).toInt(), tensor.dim());
    auto p = picking(call, tensor, dim, index);
    call.reduce({tensor, index});
    const auto rows = local_of(with_layouts(call, index, p.index));
    auto result = picked_rows(call, p, tensor, dim, rows);
    if (p.row_axis < 0 || can_sum(tensor)) return call.finish({wrap(result, call.spec(p.result))});

    // A pending sum of integers is reduced at once; only one rank has a value other than zero for each row.
    auto sum = result.to(at::kLong);
    sum_over_axes(call, {p.row_axis}, sum);
    p.result[p.row_axis] = {};
    const auto picked = wrap(sum.to(tensor.scalar_type()), call.spec(p.result));
    auto cut = call.layout(index, p.row_axis);
    if (!cut.is_shard()) return call.finish({picked});
    cut.placement.dim += dim;
    p.result[p.row_axis] = cut;
    call.finish({cut_one_dim_twice(p.result) ? picked : with_layouts(call, picked, p.result)});
}

/// The only integer tensor among the indices of `x[:, index, :]`, and the dimension that it indexes; none for other
/// kinds of indexing.
struct SingleIndex {
    at::Tensor index;
    std::int64_t dim = -1;
};

SingleIndex single_index(const c10::IValue& indices)
{
    SingleIndex single;
    std::int64_t dim = 0;
    for (const auto& element : indices.toListRef()) {
        if (element.isTensor() && element.toTensor().defined()) {
            const auto index = element.toTensor();
            if (single.dim >= 0 || (index.scalar_type() != at::kLong && index.scalar_type() != at::kInt)) return {};
            single = {index, dim};
        }
        ++dim;
    }
    return single;
}

/// LibTorch accepts CPU indices for tensors of any device: here they are copied to it.
void move_indices(RuleCall& call)
{
    const auto device = call.tensor(0).device();
    map_tensors(call.arg(1),
                [&](const at::Tensor& index) { return index.is_cpu() && !device.is_cpu() ? index.to(device) : index; });
}

/// Converts negative indices, which count from the end in `index` and `index_put`.
at::Tensor from_the_front(const at::Tensor& index, std::int64_t size)
{
    return at::where(index.lt(0), index + size, index);
}

/// Indices for several neighbouring dimensions, `x[:, i, j]`, as one index for these dimensions flattened.
struct FlatIndex {
    std::vector<std::int64_t> shape;  ///< shape of the tensor with these dimensions flattened
    c10::List<std::optional<at::Tensor>> indices;
};

std::optional<FlatIndex> flat_index(const RuleCall& call, const at::Tensor& tensor, const c10::IValue& indices)
{
    FlatIndex flat;
    at::Tensor one;
    std::int64_t dim = 0, first = -1, last = -1;
    for (const auto& element : indices.toListRef()) {
        const auto index = element.isTensor() ? element.toTensor() : at::Tensor();
        if (index.defined()) {
            if (dim >= tensor.dim() || (index.scalar_type() != at::kLong && index.scalar_type() != at::kInt) ||
                (last >= 0 && last != dim - 1))
                return std::nullopt;
            const auto size = tensor.size(dim);
            call.reduce({index});
            if (const auto& own = local_of(index); own.numel() > 0) {
                const auto least = own.min().item<std::int64_t>(), most = own.max().item<std::int64_t>();
                TORCH_CHECK_INDEX(least >= -size && most < size, "index ", least < -size ? least : most,
                                  " is out of bounds for dimension ", dim, " with size ", size);
            }
            const auto place = from_the_front(index, size).to(at::kLong);
            one = one.defined() ? one * size + place : place;
            if (first < 0) first = dim;
            last = dim;
        }
        ++dim;
    }
    if (first < 0 || last == first || tensor.numel() == 0 || one.numel() == 0) return std::nullopt;
    flat.shape = tensor.sizes().slice(0, first).vec();
    flat.shape.push_back(c10::multiply_integers(tensor.sizes().slice(first, last - first + 1)));
    flat.shape.insert(flat.shape.end(), tensor.sizes().begin() + last + 1, tensor.sizes().end());
    for (std::int64_t d = 0; d < first; ++d) flat.indices.push_back(std::nullopt);
    flat.indices.push_back(one);
    return flat;
}

/// index.Tensor(self, indices) with one index of any shape, one mask, or indices for neighbouring dimensions
void index(RuleCall& call)
{
    move_indices(call);
    const auto tensor = call.tensor(0);
    const auto single = single_index(call.arg(1));
    if (single.dim < 0) {
        if (index_by_mask(call)) return;
        if (const auto flat = flat_index(call, tensor, call.arg(1)))
            return call.finish({at::index(tensor.reshape(flat->shape), flat->indices)});
    }
    if (single.dim < 0 || tensor.numel() == 0) return gathered_rule(call);
    const auto dim = single.dim;
    const auto p = picking(call, tensor, dim, single.index);
    if (p.row_axis >= 0 && !can_sum(tensor)) return gathered_rule(call);
    if (cut_one_dim_twice(p.result) || cut_one_dim_twice(p.index)) return gathered_rule(call);
    call.reduce({tensor, single.index});
    const auto rows = from_the_front(local_of(with_layouts(call, single.index, p.index)), tensor.size(dim));
    const auto& local = local_of(tensor);
    auto shape = local.sizes().slice(0, dim).vec();
    append(shape, rows.sizes());
    shape.insert(shape.end(), local.sizes().begin() + dim + 1, local.sizes().end());
    const auto flat = rows.reshape({-1});
    const auto picked = picked_rows(call, p, tensor, dim, flat);
    call.finish({wrap(picked.view(shape), call.spec(p.result))});
}

/// _index_put_impl_ and index_put_ (self, indices, values, accumulate, ...) with one index: every rank writes the rows
/// that it holds.
void index_put(RuleCall& call)
{
    move_indices(call);
    const auto tensor = call.tensor(0), values = call.tensor(2);
    const auto single = single_index(call.arg(1));
    const bool in_place = call.mutated_arg() == 0;
    if (single.dim < 0 && is_sharded(tensor)) {
        if (index_put_by_mask(call)) return;
        if (const auto flat = tensor.is_contiguous() ? flat_index(call, tensor, call.arg(1)) : std::nullopt) {
            const auto view = tensor.view(flat->shape);
            if (!in_place)
                return call.finish(
                    {at::index_put(view, flat->indices, values, call.arg(3).toBool()).view(tensor.sizes())});
            view.index_put_(flat->indices, values, call.arg(3).toBool());
            return call.finish({tensor});
        }
    }
    if (single.dim < 0 || !is_sharded(tensor) || tensor.numel() == 0) return gathered_rule(call);
    const auto dim = single.dim, index_dims = single.index.dim();
    auto shape = tensor.sizes().slice(0, dim).vec();
    append(shape, single.index.sizes());
    shape.insert(shape.end(), tensor.sizes().begin() + dim + 1, tensor.sizes().end());
    TORCH_CHECK(at::is_expandable_to(values.sizes(), shape), call.name(), ": expected values of shape ",
                c10::IntArrayRef(shape), ", or such as are broadcast to it, found ", values.sizes(), ".");
    const auto axes = without_pending(layouts_of(call, tensor));
    AxisLayouts value_axes(call.num_axes());
    std::int64_t row_axis = -1;
    for (const auto axis : call.axes()) {
        if (!axes[axis].is_shard()) continue;
        const auto cut = axes[axis].placement.dim;
        if (cut == dim) {
            if (row_axis >= 0) return gathered_rule(call);
            row_axis = axis;
            continue;
        }
        // The values' dimensions, counted from the last, are those of the written entries; a dimension of size one is
        // broadcast.
        const auto place = values.dim() - (tensor.dim() - 1 + index_dims) + (cut < dim ? cut : cut - 1 + index_dims);
        if (place < 0 || values.size(place) == 1) continue;
        value_axes[axis] = axes[axis];
        value_axes[axis].placement.dim = place;
    }
    call.reduce({tensor, values, single.index});
    auto rows =
        from_the_front(local_of(with_layouts(call, single.index, AxisLayouts(call.num_axes()))), tensor.size(dim));
    const auto part = local_of(with_layouts(call, values, value_axes));
    const auto& local = local_of(tensor);
    auto target = local;
    if (row_axis >= 0)
        target = with_spare_row(local, dim, axes[row_axis], call.coordinate(row_axis), rows);
    else if (local.numel() == 0)
        check_positions(rows, local.size(dim));
    c10::List<std::optional<at::Tensor>> indices;
    for (std::int64_t d = 0; d < dim; ++d) indices.push_back(std::nullopt);
    indices.push_back(rows);
    if (target.numel() > 0) {
        if (!in_place) target = target.is_same(local) ? local.clone() : target;
        target.index_put_(indices, part, call.arg(3).toBool());
    }
    const auto result = target.narrow(dim, 0, local.size(dim));
    if (!in_place) return call.finish({wrap(result.contiguous(), call.spec(axes))});
    if (!target.is_same(local)) local.copy_(result);
    call.finish({tensor});
}

/// embedding(weight, indices, padding_idx, scale_grad_by_freq, sparse)
void embedding(RuleCall& call)
{
    const auto weight = call.tensor(0), indices = call.tensor(1);
    if (weight.numel() == 0 || weight.dim() != 2) return gathered_rule(call);
    call.reduce({weight, indices});
    const auto p = picking(call, weight, 0, indices);
    const auto rows = local_of(with_layouts(call, indices, p.index));
    auto shape = rows.sizes().vec();
    const auto& local = local_of(weight);
    shape.push_back(local.size(1));
    const auto flat = rows.reshape({-1});
    const auto picked = picked_rows(call, p, weight, 0, flat);
    call.finish({wrap(picked.view(shape), call.spec(p.result))});
}

/// embedding_dense_backward(grad, indices, num_weights, padding_idx, scale_grad_by_freq): a sum over the indices,
/// pending if these are cut.
void embedding_backward(RuleCall& call)
{
    const auto indices = call.tensor(1);
    const auto channels = call.tensor(0).dim() - 1;
    call.reduce({call.tensor(0), indices});
    auto axes = layouts_of(call, call.tensor(0));
    AxisLayouts index_axes(call.num_axes()), result(call.num_axes());
    for (const auto axis : call.axes()) {
        if (axes[axis].is_replicate() && call.layout(indices, axis).is_shard()) {
            axes[axis] = call.layout(indices, axis);
            if (cut_one_dim_twice(axes)) axes[axis] = {};
        }
        if (!axes[axis].is_shard()) continue;
        result[axis] = axes[axis];
        if (axes[axis].placement.dim == channels) {
            result[axis].placement.dim = 1;
        } else {
            // Gradients are scaled by the number of occurrences of an index in the whole.
            if (call.arg(4).toBool()) return gathered_rule(call);
            index_axes[axis] = axes[axis];
            result[axis] = {Partial(), nullptr, 1};
        }
    }
    const auto gradient = local_of(with_layouts(call, call.tensor(0), axes)),
               index = local_of(with_layouts(call, indices, index_axes));
    if (gradient.numel() == 0)  // LibTorch's GPU kernel reads an index even if there is none
        return call.finish(
            {wrap(at::zeros({call.arg(2).toInt(), gradient.size(-1)}, gradient.options()), call.spec(result))});
    call.arg(0) = gradient;
    call.arg(1) = index;
    call.run({call.spec(result)});
}

const RuleRegistration indexing_rules[] = {
    {"indexing", {"aten::index_select"}, index_select},
    {"indexing", {"aten::index.Tensor"}, index},
    {"indexing", {"aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}, index_put},
    {"indexing", {"aten::embedding"}, embedding},
    {"indexing", {"aten::embedding_dense_backward"}, embedding_backward},
};

}  // namespace
}  // namespace meshard
