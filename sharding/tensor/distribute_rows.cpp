// SPDX-License-Identifier: Apache-2.0
#include "sharding/tensor/distribute_rows.h"

#include "partition/error.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"
#include "sharding/tensor/with_backward.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace meshard {
namespace {

/// Header that the source sends to the other ranks before the rows, with a fixed number of integers.
struct Announcement {
    bool valid = true;
    at::ScalarType type = at::kFloat;
    bool requires_grad = false;
    c10::DeviceType device = at::kCPU;
    std::vector<std::int64_t> shape;
};

constexpr std::int64_t kMostDims = 16;

Announcement announce(const Announcement& own, int source_rank, const RankGroup& all)
{
    auto numbers = at::zeros({kMostDims + 5}, at::kLong);
    auto* n = numbers.mutable_data_ptr<std::int64_t>();
    if (all.rank() == source_rank) {
        n[0] = own.valid;
        n[1] = static_cast<std::int64_t>(own.type);
        n[2] = own.requires_grad;
        n[3] = static_cast<std::int64_t>(own.device);
        n[4] = std::ssize(own.shape);
        std::ranges::copy(own.shape, n + 5);
    }
    all.broadcast(numbers, source_rank);
    return {n[0] != 0,
            static_cast<at::ScalarType>(n[1]),
            n[2] != 0,
            static_cast<c10::DeviceType>(n[3]),
            {n + 5, n + 5 + n[4]}};
}

/// Coordinates of a rank in the mesh; the last axis varies fastest.
std::vector<std::int64_t> coordinates_of(const DeviceMesh& mesh, std::int64_t rank)
{
    std::vector<std::int64_t> coordinates(mesh.num_axes());
    for (auto axis = mesh.num_axes(); axis-- > 0;) {
        coordinates[axis] = rank % mesh.size(axis);
        rank /= mesh.size(axis);
    }
    return coordinates;
}

/// Entries of the sharded dimension that a rank holds, by their index in the whole.
std::vector<std::int64_t> entries_of(const AxisLayout& layout, std::int64_t coordinate)
{
    std::vector<std::int64_t> entries;
    const auto offset = layout.offset(coordinate), extent = (*layout.extents)[coordinate];
    for (std::int64_t b = 0; b < layout.blocks; ++b) {
        for (std::int64_t i = 0; i < extent; ++i) entries.push_back(b * layout.total() + offset + i);
    }
    return entries;
}

/// Global ids of the rows, if the layout has an index map: on the source the ids of all ranks of its axis `domain`, in
/// rank order.
struct GlobalIds {
    std::int64_t axis = -1;
    std::vector<std::int64_t> ids;

    std::vector<std::int64_t> of(const AxisLayout& layout, std::int64_t coordinate) const
    {
        const auto begin = ids.begin() + layout.offset(coordinate);
        return {begin, begin + (*layout.extents)[coordinate]};
    }
};

bool is_by_id(const ShardSpec& spec)
{
    if (!spec.index_map || !spec.device_mesh->has_axis("domain")) return false;
    const auto domain = spec.device_mesh->axis("domain");
    const auto& layout = spec.axes[domain];
    return layout.is_shard() && layout.blocks == 1 &&
           (*layout.extents)[spec.device_mesh->coordinate(domain)] == spec.index_map->num_owned;
}

/// Every rank on the source's line of the axis `domain` sends its ids to the source; other lines hold the same
/// partition.
GlobalIds collect_ids(const ShardSpec& spec, int source_rank)
{
    const auto& mesh = *spec.device_mesh;
    GlobalIds result;
    if (!mesh.all().all_agree(is_by_id(spec))) return result;
    result.axis = mesh.axis("domain");
    const auto owned = spec.index_map->owned();
    auto mine = at::empty({std::ssize(owned)}, at::kLong);
    std::ranges::copy(owned, mine.mutable_data_ptr<std::int64_t>());

    const auto source = coordinates_of(mesh, source_rank);
    std::vector<std::int64_t> send(mesh.num_ranks(), 0), receive(mesh.num_ranks(), 0);
    const auto on_line = [&](std::int64_t rank) {
        auto coordinates = coordinates_of(mesh, rank);
        coordinates[result.axis] = source[result.axis];
        return coordinates == source;
    };
    if (!on_line(mesh.all().rank())) mine = mine.narrow(0, 0, 0);
    send[source_rank] = mine.numel();
    if (mesh.all().rank() == source_rank) {
        for (std::int64_t r = 0; r < mesh.num_ranks(); ++r) {
            if (on_line(r)) receive[r] = (*spec.axes[result.axis].extents)[coordinates_of(mesh, r)[result.axis]];
        }
    }
    const auto all = mesh.all().all_to_all_rows(mine, send, receive);
    const auto* ids = all.const_data_ptr<std::int64_t>();
    result.ids.assign(ids, ids + all.numel());
    return result;
}

/// The part of the whole that rank `rank` of the mesh holds; a view if its entries are contiguous.
at::Tensor part_of(const at::Tensor& whole, const ShardSpec& spec, const GlobalIds& by_id, std::int64_t rank)
{
    const auto coordinates = coordinates_of(*spec.device_mesh, rank);
    auto part = whole;
    for (std::size_t a = 0; a < spec.axes.size(); ++a) {
        const auto& layout = spec.axes[a];
        if (!layout.is_shard()) continue;
        if (static_cast<std::int64_t>(a) == by_id.axis) {
            part = part.index_select(layout.placement.dim,
                                     at::tensor(by_id.of(layout, coordinates[a]), at::kLong).to(whole.device()));
        } else {
            part = narrow_to_shard(part, layout, coordinates[a]);
        }
    }
    return part;
}

/// Writes a rank's part of the gradient to its position in the whole gradient.
void put_back(at::Tensor& whole, const at::Tensor& part, const ShardSpec& spec, const GlobalIds& by_id,
              std::int64_t rank)
{
    const auto coordinates = coordinates_of(*spec.device_mesh, rank);
    auto place = whole;
    bool in_one_piece = true;
    for (std::size_t a = 0; a < spec.axes.size(); ++a) {
        const auto& layout = spec.axes[a];
        if (!layout.is_shard() || static_cast<std::int64_t>(a) == by_id.axis) continue;
        in_one_piece &= layout.blocks == 1;
        if (in_one_piece) place = narrow_to_shard(place, layout, coordinates[a]);
    }
    if (in_one_piece) {
        const auto values = part.view(part_of(at::empty({1}).expand(whole.sizes()), spec, by_id, rank).sizes());
        if (by_id.axis < 0) {
            place.copy_(values);
        } else {
            const auto& layout = spec.axes[by_id.axis];
            place.index_copy_(layout.placement.dim,
                              at::tensor(by_id.of(layout, coordinates[by_id.axis]), at::kLong).to(whole.device()),
                              values);
        }
        return;
    }
    // `index` becomes the position of every entry of the part in the flattened whole.
    auto index = at::arange(whole.numel(), whole.options().dtype(at::kLong)).view(whole.sizes());
    index = part_of(index, spec, by_id, rank).reshape({-1});
    whole.view({-1}).index_copy_(0, index, part.reshape({-1}));
}

void check_layout(const ShardSpec& spec, int source_rank)
{
    if (source_rank < 0 || source_rank >= spec.device_mesh->num_ranks()) {
        throw InvalidInput("distribute_rows: source rank {} of {} ranks.", source_rank, spec.device_mesh->num_ranks());
    }
    if (spec.has_partial())
        throw InvalidInput("distribute_rows: {} has a pending axis. Choose Shard or Replicate.", to_string(spec));
}

[[noreturn]] void refuse(const Announcement& source, const ShardSpec& spec)
{
    const auto shape = fmt::format("{}", fmt::join(source.shape, " x "));
    throw InvalidInput("distribute_rows: the source's tensor ({}) does not fit the layout {}. Pass the whole on the "
                       "source rank, of at most 16 dimensions.",
                       shape.empty() ? "none" : shape, to_string(spec));
}

bool fits(const std::vector<std::int64_t>& shape, const ShardSpec& spec)
{
    for (const auto& axis : spec.axes) {
        if (!axis.is_shard()) continue;
        const auto dim = axis.placement.dim;
        if (dim < 0 || dim >= std::ssize(shape) || shape[dim] != axis.blocks * axis.total()) return false;
    }
    return true;
}

}  // namespace

at::Tensor distribute_rows(const at::Tensor& whole, int source_rank, const SpecPtr& spec)
{
    check_layout(*spec, source_rank);
    const auto& mesh = *spec->device_mesh;
    const auto& all = mesh.all();
    const bool is_source = all.rank() == source_rank;
    Announcement own;
    own.valid = is_source && whole.defined() && !is_sharded(whole) && whole.dim() <= kMostDims;
    if (own.valid) {
        own = {fits(whole.sizes().vec(), *spec), whole.scalar_type(),
               whole.requires_grad() && at::GradMode::is_enabled(), whole.device().type(), whole.sizes().vec()};
    }
    const auto source = announce(own, source_rank, all);
    if (!source.valid) refuse(source, *spec);
    const auto by_id = collect_ids(*spec, source_rank);
    const auto local_shape = spec->local_shape(source.shape);
    const auto options =
        at::TensorOptions().dtype(source.type).device(is_source ? whole.device() : at::Device(source.device));

    // Parts are sent to one rank after the other, so that the source makes no copy of the whole.
    at::Tensor local;
    {
        const at::NoGradGuard no_grad;
        for (std::int64_t rank = 0; rank < all.size(); ++rank) {
            at::Tensor part;
            if (is_source)
                part = part_of(whole.detach(), *spec, by_id, rank).reshape({-1});
            else
                part = at::empty({0}, options);
            if (rank == source_rank) {
                if (is_source) local = part.clone();  // a view would keep the whole alive
                continue;
            }
            std::vector<std::int64_t> send(all.size(), 0), receive(all.size(), 0);
            send[rank] = part.numel();
            if (all.rank() == rank) receive[source_rank] = c10::multiply_integers(local_shape);
            const auto received = all.all_to_all_rows(part, send, receive);
            if (all.rank() == rank) local = received;
        }
        local = wrap(local.view(local_shape), spec);
    }
    const auto back = [spec, source, by_id, source_rank, is_source](const at::Tensor& gradient) {
        const at::NoGradGuard no_grad;
        const auto& all = spec->device_mesh->all();
        const auto there = is_sharded(gradient) ? gradient : wrap(gradient, replicated_spec(spec->device_mesh));
        const auto mine = local_of(convert(there, spec)).reshape({-1});
        auto whole = is_source ? at::zeros(source.shape, mine.options()) : at::Tensor();
        for (std::int64_t rank = 0; rank < all.size(); ++rank) {
            std::vector<std::int64_t> send(all.size(), 0), receive(all.size(), 0);
            at::Tensor part = mine;
            if (rank != source_rank) {
                if (all.rank() == rank)
                    send[source_rank] = mine.numel();
                else
                    part = mine.narrow(0, 0, 0);
                if (is_source) receive[rank] = part_of(at::empty({1}).expand(source.shape), *spec, by_id, rank).numel();
                part = all.all_to_all_rows(part, send, receive);
            }
            // Ranks along a Replicate axis send the same part; the last one received is kept.
            if (is_source) put_back(whole, part, *spec, by_id, rank);
        }
        return whole;
    };
    return with_backward(std::move(local), is_source ? whole : at::Tensor(), "DistributeRowsBackward", back,
                         source.requires_grad);
}

at::Tensor distribute_rows(const RowProvider& provider, int source_rank, const SpecPtr& spec,
                           std::int64_t rows_per_message)
{
    check_layout(*spec, source_rank);
    const at::NoGradGuard no_grad;
    const auto& mesh = *spec->device_mesh;
    const auto& all = mesh.all();
    const bool is_source = all.rank() == source_rank;
    std::int64_t cut_axis = -1, num_cuts = 0;
    for (std::size_t a = 0; a < spec->axes.size(); ++a) {
        if (!spec->axes[a].is_shard()) continue;
        cut_axis = static_cast<std::int64_t>(a);
        ++num_cuts;
    }
    if (num_cuts != 1 || spec->axes[cut_axis].placement.dim != 0 || rows_per_message < 1) {
        throw InvalidInput(
            "distribute_rows: from a provider, for a layout that cuts dimension 0 on one axis; this is {}.",
            to_string(*spec));
    }
    const auto& layout = spec->axes[cut_axis];
    Announcement own;
    own.valid = is_source && provider;
    if (own.valid) {
        const auto none = provider({});
        own.shape = none.sizes().vec();
        own.type = none.scalar_type();
        own.device = none.device().type();
        own.valid = none.dim() >= 1 && none.dim() <= kMostDims && none.size(0) == 0;
    }
    auto source = announce(own, source_rank, all);
    if (!source.valid) refuse(source, *spec);
    const auto by_id = collect_ids(*spec, source_rank);

    auto shape = source.shape;
    shape[0] = layout.blocks * (*layout.extents)[mesh.coordinate(cut_axis)];
    const auto local = at::empty(shape, at::TensorOptions().dtype(source.type).device(source.device));
    shape[0] = 0;
    const auto nothing = at::empty(shape, local.options());
    for (std::int64_t rank = 0; rank < all.size(); ++rank) {
        const auto coordinate = coordinates_of(mesh, rank)[cut_axis];
        const auto count = layout.blocks * (*layout.extents)[coordinate];
        std::vector<std::int64_t> ids;
        if (is_source) ids = by_id.axis >= 0 ? by_id.of(layout, coordinate) : entries_of(layout, coordinate);
        for (std::int64_t begin = 0; begin < count; begin += rows_per_message) {
            const auto rows = std::min(rows_per_message, count - begin);
            auto part = nothing;
            if (is_source) part = provider(std::span(ids).subspan(begin, rows));
            if (rank != source_rank) {
                std::vector<std::int64_t> send(all.size(), 0), receive(all.size(), 0);
                if (is_source) send[rank] = rows;
                if (all.rank() == rank) receive[source_rank] = rows;
                part = all.all_to_all_rows(part, send, receive);
            }
            if (all.rank() == rank) local.narrow(0, begin, rows).copy_(part);
        }
    }
    return wrap(local, spec);
}

}  // namespace meshard
