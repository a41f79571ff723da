// SPDX-License-Identifier: Apache-2.0
#include "sharding/tensor/redistribute.h"

#include "partition/error.h"
#include "sharding/ranks/type_limits.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace meshard {
namespace {

/// (..., blocks * n, ...) to (n, blocks, rest...): splits `dim` and moves it to the front.
at::Tensor rows_first(const at::Tensor& local, std::int64_t dim, std::int64_t blocks)
{
    auto moved = local.movedim(dim, 0);
    if (blocks == 1) return moved.contiguous();
    auto shape = moved.sizes().vec();
    shape[0] /= blocks;
    shape.insert(shape.begin(), blocks);
    return moved.reshape(shape).transpose(0, 1).contiguous();  // (n, blocks, rest...)
}

at::Tensor rows_back(const at::Tensor& rows, std::int64_t dim, std::int64_t blocks)
{
    if (blocks == 1) return rows.movedim(0, dim);
    auto shape = rows.sizes().vec();
    shape[1] *= shape[0];
    shape.erase(shape.begin());
    return rows.transpose(0, 1).reshape(shape).movedim(0, dim);
}

at::Tensor gather(const at::Tensor& local, const AxisLayout& layout, const RankGroup& group)
{
    if (group.size() == 1) return local;
    const auto dim = layout.placement.dim;
    const auto rows = rows_first(local, dim, layout.blocks);
    return rows_back(group.all_gather_rows(rows, *layout.extents), dim, layout.blocks);
}

/// Converts a Shard to a Shard of another dimension, or of the same one with other extents. Every element is sent at
/// most once.
at::Tensor reshard(const at::Tensor& local, const AxisLayout& from, const AxisLayout& to, const RankGroup& group)
{
    const auto size = group.size();
    const auto me = group.rank();
    const auto i = from.placement.dim, j = to.placement.dim;
    std::vector<at::Tensor> pieces;
    std::vector<std::int64_t> send(size), receive(size);
    // Shape of the tensor that each rank sends here, with the dimension of `from` first.
    std::vector<std::vector<std::int64_t>> shapes(size);

    if (i != j) {
        for (int r = 0; r < size; ++r) {
            auto piece = narrow_to_shard(local, to, r);
            send[r] = piece.numel();
            pieces.push_back(rows_first(piece, i, from.blocks).reshape({-1}));
            auto shape = rows_first(narrow_to_shard(local, to, me), i, from.blocks).sizes().vec();
            shape[0] = (*from.extents)[r];
            receive[r] = c10::multiply_integers(shape);
            shapes[r] = shape;
        }
    } else {
        const auto rows = rows_first(local, i, from.blocks);
        const auto row_size =
            rows.size(0) > 0 ? rows.numel() / rows.size(0) : c10::multiply_integers(rows.sizes().slice(1));
        const auto overlap = [](std::int64_t a0, std::int64_t a1, std::int64_t b0, std::int64_t b1) {
            return std::max<std::int64_t>(0, std::min(a1, b1) - std::max(a0, b0));
        };
        const auto my_from = from.offset(me), my_to = to.offset(me);
        for (int r = 0; r < size; ++r) {
            const auto to_r = to.offset(r), from_r = from.offset(r);
            const auto n = overlap(my_from, my_from + (*from.extents)[me], to_r, to_r + (*to.extents)[r]);
            pieces.push_back(rows.narrow(0, n ? std::max(to_r - my_from, std::int64_t{0}) : 0, n).reshape({-1}));
            send[r] = n * row_size;
            auto shape = rows.sizes().vec();
            shape[0] = overlap(my_to, my_to + (*to.extents)[me], from_r, from_r + (*from.extents)[r]);
            receive[r] = shape[0] * row_size;
            shapes[r] = shape;
        }
    }
    const auto received = group.all_to_all_rows(at::cat(pieces), send, receive);
    std::vector<at::Tensor> parts;
    std::int64_t offset = 0;
    for (int r = 0; r < size; ++r) {
        parts.push_back(received.narrow(0, offset, receive[r]).view(shapes[r]));
        offset += receive[r];
    }
    return rows_back(at::cat(parts), i, from.blocks);
}

at::Tensor reduce(const at::Tensor& local, Reduction reduction, const RankGroup& group)
{
    if (group.size() == 1) return local;
    auto buffer = local.clone(at::MemoryFormat::Contiguous);
    group.all_reduce(buffer, reduction);
    return buffer;
}

}  // namespace

at::Tensor own_part(const at::Tensor& whole, const ShardSpec& spec)
{
    auto part = whole;
    for (std::size_t a = 0; a < spec.axes.size(); ++a) {
        if (spec.axes[a].is_shard()) part = narrow_to_shard(part, spec.axes[a], spec.device_mesh->coordinate(a));
    }
    return part;
}

at::Tensor narrow_to_shard(const at::Tensor& local, const AxisLayout& layout, std::int64_t coordinate)
{
    const auto dim = layout.placement.dim;
    const auto offset = layout.offset(coordinate), extent = (*layout.extents)[coordinate];
    if (layout.blocks == 1) return local.narrow(dim, offset, extent);
    auto split = local.sizes().vec();
    split[dim] = local.size(dim) / layout.blocks;
    split.insert(split.begin() + dim, layout.blocks);
    auto shape = local.sizes().vec();
    shape[dim] = layout.blocks * extent;
    return local.reshape(split).narrow(dim + 1, offset, extent).reshape(shape);
}

at::Tensor convert(const at::Tensor& tensor, const SpecPtr& target)
{
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const auto source = spec_of(tensor);
    const auto& mesh = *source->device_mesh;
    if (source->device_mesh != target->device_mesh) {
        throw InvalidInput(
            "redistribute: the target is on another device mesh. Gather with full_tensor, then distribute_rows.");
    }
    auto axes = source->axes;
    auto local = local_of(tensor);

    const auto cut_by_another = [&](std::int64_t dim, std::size_t but) {
        for (std::size_t a = 0; a < axes.size(); ++a) {
            if (a != but && axes[a].is_shard() && axes[a].placement.dim == dim) return true;
        }
        return false;
    };
    for (std::size_t a = 0; a < axes.size(); ++a) {
        const auto& to = target->axes[a];
        if (axes[a] == to) continue;
        if (to.is_partial()) {
            throw InvalidInput(
                "redistribute: from {} to {}: only operators make pending reductions. Choose Replicate or Shard.",
                to_string(axes[a].placement), to_string(to.placement));
        }
        const auto& group = mesh.group(a);
        if (axes[a].is_partial()) {
            local = reduce(local, axes[a].placement.reduction, group);
            axes[a] = {};
        } else if (axes[a].is_shard()) {
            const bool direct = to.is_shard() && !cut_by_another(to.placement.dim, a) && group.size() > 1 &&
                                (to.placement.dim != axes[a].placement.dim || to.blocks == axes[a].blocks);
            local = direct ? reshard(local, axes[a], to, group) : gather(local, axes[a], group);
            axes[a] = direct ? to : AxisLayout{};
        }
    }
    for (std::size_t a = 0; a < axes.size(); ++a) {
        const auto& to = target->axes[a];
        if (axes[a] == to) continue;
        // A view would keep the whole alive.
        local = narrow_to_shard(local, to, mesh.coordinate(a)).clone(at::MemoryFormat::Contiguous);
    }
    return wrap(local, target);
}

void reduce_partials(c10::ArrayRef<at::Tensor> tensors)
{
    std::vector<at::Tensor> pending;
    for (const auto& tensor : tensors) {
        const bool known = std::ranges::any_of(pending, [&](const at::Tensor& other) { return other.is_same(tensor); });
        if (is_sharded(tensor) && spec_of(tensor)->has_partial() && !known) pending.push_back(tensor);
    }
    if (pending.empty()) return;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;

    while (!pending.empty()) {
        // All tensors that share axis, reduction, type and device with the first one are reduced in one message.
        const auto& first = pending.front();
        // A copy: the tensor's own spec is freed when the tensor gets a new one.
        const auto mesh = spec_of(first)->device_mesh;
        std::size_t axis = 0;
        while (!spec_of(first)->axes[axis].is_partial()) ++axis;
        const auto reduction = spec_of(first)->axes[axis].placement.reduction;
        const auto type = sum_type(first.scalar_type());

        std::vector<at::Tensor> together, rest, flat;
        for (const auto& tensor : pending) {
            const auto& spec = *spec_of(tensor);
            const bool same = spec.device_mesh == mesh && spec.axes[axis].is_partial() &&
                              spec.axes[axis].placement.reduction == reduction &&
                              sum_type(tensor.scalar_type()) == type && tensor.device() == first.device();
            (same ? together : rest).push_back(tensor);
        }
        for (const auto& tensor : together) flat.push_back(local_of(tensor).reshape({-1}).to(type));
        const auto& group = mesh->group(axis);
        at::Tensor buffer;
        if (group.size() > 1) {
            // A copy even of one tensor: the pending parts stay unchanged until they are replaced.
            buffer = at::cat(flat);
            group.all_reduce(buffer, reduction);
        }
        std::int64_t offset = 0;
        for (const auto& tensor : together) {
            const auto local = local_of(tensor);
            auto axes = spec_of(tensor)->axes;
            axes[axis] = {};
            auto reduced = local;
            if (group.size() > 1)
                reduced = buffer.narrow(0, offset, local.numel()).view(local.sizes()).to(local.scalar_type());
            offset += local.numel();
            move_copy(tensor, reduced, make_spec(mesh, axes, spec_of(tensor)->index_map));
            if (spec_of(tensor)->has_partial()) rest.push_back(tensor);
        }
        pending = std::move(rest);
    }
}

}  // namespace meshard
