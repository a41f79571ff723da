// SPDX-License-Identifier: Apache-2.0
#include "ops/row_gather.h"

#include <ATen/ATen.h>

#include <span>
#include <string>
#include <vector>

#include "ops/cut_rows.h"
#include "ops/row_moves.h"
#include "partition/error.h"
#include "sharding/redistribute.h"
#include "sharding/row_routes.h"
#include "sharding/shard_tensor.h"

namespace meshard {
namespace {

/// A tensor's rows here, the ids they answer to, and the ways between those and the wanted ones.
struct Access {
    CutRows part;
    CutRows wanted;                            ///< ids
    at::Tensor ids;                            ///< (wanted), on the CPU
    std::shared_ptr<const RowRoutes> routes;   ///< null if all rows are here

    at::Tensor gather(const at::Tensor& from) const { return routes ? routes->gather(from) : gathered_rows(from, ids); }
    at::Tensor scatter(const at::Tensor& values) const { return routes ? routes->scatter(values) : summed_rows(values, ids, part.own.size(0)); }
};

Access access_to(const char* where, const at::Tensor& tensor, const at::Tensor& ids)
{
    Access access{cut_rows_of(where, "rows", tensor), cut_rows_of(where, "ids", ids), {}, nullptr};
    access.ids = access.wanted.own.detach().to(at::kCPU).contiguous();
    const auto group = access.part.is_cut() ? access.part.group() : access.wanted.group();
    const auto num_rows = access.part.num_global;
    const bool fits = tensor.dim() >= 1 && access.ids.dim() == 1 && access.ids.scalar_type() == at::kLong;
    const bool in_range = fits && (access.ids.numel() == 0 || (access.ids.min().item<std::int64_t>() >= 0 && access.ids.max().item<std::int64_t>() < num_rows));
    if (!group.all_agree(in_range)) {
        throw InvalidInput(std::string(where) + ": ids of type " + c10::toString(access.ids.scalar_type()) + " for a tensor of " + std::to_string(num_rows) +
                           " rows; expected one dimension of int64 from 0 to one below the number of rows on every rank" +
                           (in_range ? ", but another rank's are not so." : "."));
    }
    if (!access.part.is_cut()) return access;
    const std::span<const std::int64_t> wanted(access.ids.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(access.ids.numel()));
    access.routes = RowRoutes::find(access.part.ids(), wanted, num_rows, group);
    return access;
}

/// This rank's part of what is to be scattered, a row an id.
at::Tensor own_values(const char* where, const at::Tensor& values, const Access& access)
{
    if (is_sharded(values)) reduce_partials(values);
    const auto own = is_sharded(values) ? to_local(values) : values;
    const bool fits = own.dim() == access.part.own.dim() && own.size(0) == access.ids.numel() && own.sizes().slice(1) == access.part.own.sizes().slice(1);
    if (access.part.group().all_agree(fits)) return own;
    throw InvalidInput(std::string(where) + ": values of " + std::to_string(own.dim() < 1 ? 0 : own.size(0)) + " rows for " +
                       std::to_string(access.ids.numel()) + " ids; expected a row an id, of the shape of the tensor's rows, on every rank.");
}

}  // namespace

at::Tensor gather_rows(const at::Tensor& tensor, const at::Tensor& ids)
{
    const auto access = access_to("gather_rows", tensor, ids);
    return access.wanted.like(access.gather(access.part.own));
}

at::Tensor scatter_add(const at::Tensor& tensor, const at::Tensor& ids, const at::Tensor& values)
{
    const auto access = access_to("scatter_add", tensor, ids);
    return access.part.like(access.part.own + access.scatter(own_values("scatter_add", values, access)));
}

at::Tensor scatter_max(const at::Tensor& tensor, const at::Tensor& ids, const at::Tensor& values)
{
    const auto access = access_to("scatter_max", tensor, ids);
    const auto own = own_values("scatter_max", values, access);
    at::Tensor largest;
    {
        const at::NoGradGuard no_grad;
        const auto rows = access.part.own.detach();
        largest = access.routes ? at::maximum(rows, access.routes->scatter(own.detach(), Reduction::Max))
                                : rows.clone().index_reduce_(0, access.ids.to(rows.device()), own.detach(), "amax");
    }
    if (!at::GradMode::is_enabled() || !(access.part.own.requires_grad() || own.requires_grad())) return access.part.like(largest);
    // Each of the equal ones with its share: the right gradient; the extreme itself: the right bits.
    const auto is_row = access.part.own.detach().eq(largest), is_value = own.detach().eq(access.gather(largest));
    const auto type = largest.scalar_type();
    const auto count = is_row.to(type) + access.scatter(is_value.to(type));
    const auto kept = at::where(is_row, access.part.own, at::zeros_like(largest)) + access.scatter(at::where(is_value, own, at::zeros_like(own)));
    const auto shared = kept / count;
    return access.part.like(largest + (shared - shared.detach()));
}

}  // namespace meshard
