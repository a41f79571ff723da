// SPDX-License-Identifier: Apache-2.0
#include "sharding/tensor/shard_spec.h"

#include "partition/error.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

namespace meshard {

std::int64_t AxisLayout::total() const
{
    return std::accumulate(extents->begin(), extents->end(), std::int64_t{0});
}

std::int64_t AxisLayout::offset(std::int64_t coordinate) const
{
    return std::accumulate(extents->begin(), extents->begin() + coordinate, std::int64_t{0});
}

bool AxisLayout::operator==(const AxisLayout& other) const
{
    if (placement.kind != other.placement.kind) return false;
    if (is_replicate()) return true;
    if (is_partial()) return placement.reduction == other.placement.reduction;
    return placement.dim == other.placement.dim && blocks == other.blocks &&
           (extents == other.extents || *extents == *other.extents);
}

AxisLayouts without_pending(AxisLayouts axes)
{
    for (auto& axis : axes) {
        if (axis.is_partial()) axis = {};
    }
    return axes;
}

bool ShardSpec::is_replicate() const
{
    for (const auto& axis : axes) {
        if (!axis.is_replicate()) return false;
    }
    return true;
}

bool ShardSpec::has_partial() const
{
    for (const auto& axis : axes) {
        if (axis.is_partial()) return true;
    }
    return false;
}

bool ShardSpec::has_shard() const
{
    for (const auto& axis : axes) {
        if (axis.is_shard()) return true;
    }
    return false;
}

std::int64_t ShardSpec::axis_of_dim(std::int64_t dim) const
{
    for (std::size_t a = 0; a < axes.size(); ++a) {
        if (axes[a].is_shard() && axes[a].placement.dim == dim) return static_cast<std::int64_t>(a);
    }
    return -1;
}

std::vector<std::int64_t> ShardSpec::global_shape(c10::IntArrayRef local_shape) const
{
    auto shape = local_shape.vec();
    for (const auto& axis : axes) {
        if (axis.is_shard()) shape[axis.placement.dim] = axis.blocks * axis.total();
    }
    return shape;
}

std::vector<std::int64_t> ShardSpec::local_shape(c10::IntArrayRef global_shape) const
{
    auto shape = global_shape.vec();
    for (std::size_t a = 0; a < axes.size(); ++a) {
        const auto& axis = axes[a];
        if (axis.is_shard()) shape[axis.placement.dim] = axis.blocks * (*axis.extents)[device_mesh->coordinate(a)];
    }
    return shape;
}

bool ShardSpec::operator==(const ShardSpec& other) const
{
    return this == &other || (device_mesh == other.device_mesh && axes == other.axes);
}

void ShardSpec::validate() const
{
    const auto fail = [](const std::string& what, const char* remedy) {
        throw InvalidInput("ShardSpec: {}. {}", what, remedy);
    };
    if (!device_mesh) fail("there is no device mesh", "Pass the device mesh of the ranks that hold the parts.");
    const auto num_axes = device_mesh->num_axes();
    if (std::ssize(axes) != num_axes) {
        fail(fmt::format("{} layouts for a device mesh of {} axes", axes.size(), num_axes), "Give one layout an axis.");
    }
    for (std::int64_t a = 0; a < num_axes; ++a) {
        const auto& axis = axes[a];
        if (!axis.is_shard()) continue;
        const auto where = [&] {
            return to_string(axis.placement) + " on axis '" + device_mesh->axis_names()[a] + "' ";
        };
        const auto num_ranks = device_mesh->size(a);
        if (!axis.extents) fail(where() + "has no extents", "Pass the number of rows of each rank.");
        const auto found = std::ssize(*axis.extents);
        if (found != num_ranks) {
            fail(fmt::format("{}has {} extents, expected {}", where(), found, num_ranks),
                 "Pass one extent for each rank, 0 for a rank without rows.");
        }
        for (std::int64_t r = 0; r < num_ranks; ++r) {
            if ((*axis.extents)[r] < 0)
                fail(fmt::format("{}has the extent {} on rank {}", where(), (*axis.extents)[r], r),
                     "Expected 0 or more.");
        }
        if (axis.blocks < 1) fail(fmt::format("{}has {} blocks", where(), axis.blocks), "Expected 1 or more.");
        if (axis.placement.dim < 0)
            fail(fmt::format("{}cuts dimension {}", where(), axis.placement.dim),
                 "Count the dimension from the front.");
        const auto other = axis_of_dim(axis.placement.dim);
        if (other != a && device_mesh->size(other) * num_ranks > 1) {
            fail(fmt::format("{}cuts a dimension that axis '{}' cuts, too", where(), device_mesh->axis_names()[other]),
                 "Cut it on one axis, of a device mesh that has all these ranks on it, or cut another dimension.");
        }
    }
}

SpecPtr make_spec(std::shared_ptr<const DeviceMesh> device_mesh, c10::ArrayRef<AxisLayout> axes,
                  std::shared_ptr<const IndexMap> index_map)
{
    auto spec = std::make_shared<ShardSpec>();
    spec->device_mesh = std::move(device_mesh);
    spec->axes.assign(axes.begin(), axes.end());
    spec->index_map = std::move(index_map);
    spec->validate();
    return spec;
}

SpecPtr replicated_spec(std::shared_ptr<const DeviceMesh> device_mesh)
{
    if (!device_mesh) throw InvalidInput("replicated_spec: there is no device mesh.");
    const std::vector<AxisLayout> axes(device_mesh->num_axes());
    return make_spec(std::move(device_mesh), axes);
}

SpecPtr shard_spec(std::shared_ptr<const IndexMap> index_map, std::shared_ptr<const DeviceMesh> device_mesh,
                   std::int64_t dim)
{
    if (!index_map || !device_mesh)
        throw InvalidInput("shard_spec: there is no index map or no device mesh. Pass those of this rank's part.");
    const auto domain = device_mesh->axis("domain");
    // Sums, modulo 2^64, of the owned ids and of their squares: other rows than 0 to N - 1 rarely have the same two.
    std::uint64_t ids = 0, squares = 0;
    const bool has_ids = index_map->num_owned <= index_map->num_local();
    for (const auto id : has_ids ? index_map->owned() : std::span<const std::int64_t>()) {
        ids += static_cast<std::uint64_t>(id);
        squares += static_cast<std::uint64_t>(id) * static_cast<std::uint64_t>(id);
    }
    const bool is_sorted = has_ids && std::ranges::is_sorted(index_map->owned());
    const std::vector<std::int64_t> own{index_map->num_owned, index_map->num_global, static_cast<std::int64_t>(ids),
                                        static_cast<std::int64_t>(squares), is_sorted};
    const auto all = device_mesh->group(domain).all_gather_integers(own);

    auto extents = std::make_shared<Extents>();
    for (const auto& rank : all) extents->push_back(rank[0]);
    const auto sum = std::accumulate(extents->begin(), extents->end(), std::int64_t{0});
    for (const auto& rank : all) {
        if (rank[1] != sum) {
            throw InvalidInput("shard_spec: the ranks own {} rows together, but one holds a part of {} "
                               "rows. Load the parts of one and the same mesh, each on one rank.",
                               sum, rank[1]);
        }
    }
    std::uint64_t all_ids = 0, all_squares = 0;
    for (std::size_t r = 0; r < all.size(); ++r) {
        all_ids += static_cast<std::uint64_t>(all[r][2]);
        all_squares += static_cast<std::uint64_t>(all[r][3]);
        if (!all[r][4])
            throw InvalidInput("shard_spec: rank {} has no ids of its owned rows, or they are not sorted.", r);
    }
    // In 128 bits, where the products of up to 2^31 rows fit.
    __extension__ using Wide = unsigned __int128;
    const auto n = static_cast<Wide>(sum);
    const bool is_each_once = sum == 0 || (static_cast<std::uint64_t>(n * (n - 1) / 2) == all_ids &&
                                           static_cast<std::uint64_t>(n * (n - 1) * (2 * n - 1) / 6) == all_squares);
    if (!is_each_once) {
        throw InvalidInput("shard_spec: the ranks own {} rows together, but not each of the rows 0 to {} "
                           "once. Load the parts of one and the same mesh, each on one rank.",
                           sum, sum - 1);
    }
    std::vector<AxisLayout> axes(device_mesh->num_axes());
    axes[domain] = {Shard(dim), std::move(extents), 1};
    return make_spec(std::move(device_mesh), axes, std::move(index_map));
}

Extents even_extents(std::int64_t n, std::int64_t num_ranks)
{
    Extents extents(num_ranks, n / num_ranks);
    for (std::int64_t r = 0; r < n % num_ranks; ++r) ++extents[r];
    return extents;
}

std::string to_string(const ShardSpec& spec)
{
    std::string text;
    for (std::size_t a = 0; a < spec.axes.size(); ++a) {
        const auto& axis = spec.axes[a];
        text += (a ? ", " : "") + to_string(axis.placement);
        if (axis.is_shard()) {
            text += " of ";
            if (axis.blocks > 1) text += fmt::format("{} x (", axis.blocks);
            for (std::size_t r = 0; r < axis.extents->size(); ++r)
                text += (r ? "+" : "") + std::to_string((*axis.extents)[r]);
            if (axis.blocks > 1) text += ")";
        }
        text += " on " + spec.device_mesh->axis_names()[a];
    }
    return text;
}

}  // namespace meshard
