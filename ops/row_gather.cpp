// SPDX-License-Identifier: Apache-2.0
#include "ops/row_gather.h"

#include <ATen/ATen.h>

#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "partition/error.h"
#include "sharding/redistribute.h"
#include "sharding/row_routes.h"
#include "sharding/shard_tensor.h"

namespace meshard {
namespace {

/// A tensor's rows here, the ids they answer to, and the ways between those and the wanted ones.
struct Access {
    at::Tensor rows;
    SpecPtr layout;                            ///< null for a plain tensor
    at::Tensor ids;                            ///< (wanted), plain
    SpecPtr ids_layout;
    std::shared_ptr<const RowRoutes> routes;   ///< null if all rows are here

    at::Tensor gather(const at::Tensor& from) const { return routes ? routes->gather(from) : from.index_select(0, ids.to(from.device())); }
    at::Tensor scatter(const at::Tensor& values) const
    {
        if (routes) return routes->scatter(values);
        auto shape = values.sizes().vec();
        shape[0] = rows.size(0);
        return at::zeros(shape, values.options().requires_grad(false)).index_add(0, ids.to(values.device()), values);
    }
    at::Tensor as_tensor(const at::Tensor& own_rows) const { return layout ? from_local(own_rows, layout) : own_rows; }
};

int cut_axis(const char* where, const char* what, const ShardSpec& spec)
{
    int axis = -1;
    for (std::size_t a = 0; a < spec.axes.size(); ++a) {
        const auto& layout = spec.axes[a];
        if (layout.is_replicate()) continue;
        if (layout.placement.dim != 0 || layout.blocks != 1 || axis >= 0) {
            throw InvalidInput(std::string(where) + ": the " + what + " lie as " + to_string(spec) + ", expected a cut along the rows only. Redistribute them.");
        }
        axis = static_cast<int>(a);
    }
    return axis;
}

Access access_to(const char* where, const at::Tensor& tensor, const at::Tensor& ids)
{
    Access access;
    access.rows = tensor;
    access.ids = ids;
    int axis = -1;
    const RankGroup* group = nullptr;
    if (is_sharded(tensor)) {
        reduce_partials(tensor);
        access.layout = spec_of(tensor);
        axis = cut_axis(where, "rows", *access.layout);
        if (axis >= 0) group = &access.layout->device_mesh->group(axis);
        access.rows = to_local(tensor);
    }
    if (is_sharded(ids)) {
        reduce_partials(ids);
        access.ids_layout = spec_of(ids);
        const auto ids_axis = cut_axis(where, "ids", *access.ids_layout);
        if (ids_axis >= 0 && !group) group = &access.ids_layout->device_mesh->group(ids_axis);
        access.ids = to_local(ids);
    }
    access.ids = access.ids.detach().to(at::kCPU).contiguous();
    const auto num_rows = tensor.dim() < 1 ? 0 : tensor.size(0);
    const bool fits = tensor.dim() >= 1 && access.ids.dim() == 1 && access.ids.scalar_type() == at::kLong;
    const bool in_range = fits && (access.ids.numel() == 0 || (access.ids.min().item<std::int64_t>() >= 0 && access.ids.max().item<std::int64_t>() < num_rows));
    if (!(group ? group->all_agree(in_range) : in_range)) {
        throw InvalidInput(std::string(where) + ": ids of type " + c10::toString(access.ids.scalar_type()) + " for a tensor of " + std::to_string(num_rows) +
                           " rows; expected one dimension of int64 from 0 to one below the number of rows on every rank" +
                           (in_range ? ", but another rank's are not so." : "."));
    }
    if (axis < 0) return access;
    const auto& map = access.layout->index_map;
    std::vector<std::int64_t> own(access.rows.size(0));
    if (map && map->num_owned == access.rows.size(0)) own.assign(map->owned().begin(), map->owned().end());
    else std::iota(own.begin(), own.end(), access.layout->axes[axis].offset(access.layout->device_mesh->coordinate(axis)));
    const std::span<const std::int64_t> wanted(access.ids.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(access.ids.numel()));
    access.routes = RowRoutes::find(own, wanted, num_rows, *group);
    return access;
}

/// This rank's part of what is to be scattered, a row an id.
at::Tensor own_values(const char* where, const at::Tensor& values, const Access& access)
{
    if (is_sharded(values)) reduce_partials(values);
    const auto own = is_sharded(values) ? to_local(values) : values;
    const bool fits = own.dim() == access.rows.dim() && own.size(0) == access.ids.numel() && own.sizes().slice(1) == access.rows.sizes().slice(1);
    const bool all_fit = access.layout && access.routes ? access.layout->device_mesh->group(cut_axis(where, "rows", *access.layout)).all_agree(fits) : fits;
    if (all_fit) return own;
    throw InvalidInput(std::string(where) + ": values of " + std::to_string(own.dim() < 1 ? 0 : own.size(0)) + " rows for " +
                       std::to_string(access.ids.numel()) + " ids; expected a row an id, of the shape of the tensor's rows, on every rank.");
}

}  // namespace

at::Tensor gather_rows(const at::Tensor& tensor, const at::Tensor& ids)
{
    const auto access = access_to("gather_rows", tensor, ids);
    const auto found = access.gather(access.rows);
    if (!access.ids_layout) return found;
    return from_local(found, access.ids_layout);
}

at::Tensor scatter_add(const at::Tensor& tensor, const at::Tensor& ids, const at::Tensor& values)
{
    const auto access = access_to("scatter_add", tensor, ids);
    return access.as_tensor(access.rows + access.scatter(own_values("scatter_add", values, access)));
}

at::Tensor scatter_max(const at::Tensor& tensor, const at::Tensor& ids, const at::Tensor& values)
{
    const auto access = access_to("scatter_max", tensor, ids);
    const auto own = own_values("scatter_max", values, access);
    at::Tensor largest;
    {
        const at::NoGradGuard no_grad;
        const auto rows = access.rows.detach();
        largest = access.routes ? at::maximum(rows, access.routes->scatter(own.detach(), Reduction::Max))
                                : rows.clone().index_reduce_(0, access.ids.to(rows.device()), own.detach(), "amax");
    }
    if (!at::GradMode::is_enabled() || !(access.rows.requires_grad() || own.requires_grad())) return access.as_tensor(largest);
    // Each of the equal ones with its share: the right gradient; the extreme itself: the right bits.
    const auto is_row = access.rows.detach().eq(largest), is_value = own.detach().eq(access.gather(largest));
    const auto type = largest.scalar_type();
    const auto count = is_row.to(type) + access.scatter(is_value.to(type));
    const auto kept = at::where(is_row, access.rows, at::zeros_like(largest)) + access.scatter(at::where(is_value, own, at::zeros_like(own)));
    const auto shared = kept / count;
    return access.as_tensor(largest + (shared - shared.detach()));
}

}  // namespace meshard
