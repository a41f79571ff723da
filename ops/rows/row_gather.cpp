// SPDX-License-Identifier: Apache-2.0
#include "ops/rows/row_gather.h"

#include "ops/rows/cut_rows.h"
#include "ops/rows/row_moves.h"
#include "sharding/exchange/row_routes.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <span>
#include <string>

namespace meshard {
namespace {

/// This rank's rows of a tensor, the ids of the rows that it wants, and the routes to the ranks that hold them.
struct Access {
    CutRows part;
    CutRows wanted;                           ///< the tensor of ids
    at::Tensor ids;                           ///< (wanted), on the CPU
    at::Tensor values;                        ///< rows that this rank scatters, one for each id; undefined for a gather
    std::shared_ptr<const RowRoutes> routes;  ///< null if this rank holds all rows

    /// The ids, cut as they were given, on the device of a tensor.
    at::Tensor ids_beside(const at::Tensor& tensor) const { return wanted.like(ids.to(tensor.device())); }
    at::Tensor gather(const at::Tensor& from) const { return routes ? routes->gather(from) : take_rows(from, ids); }
    at::Tensor scatter(const at::Tensor& values) const
    {
        return routes ? routes->scatter(values) : scatter_rows(values, ids, part.own.size(0));
    }
};

/// Returns the text of an error in the arguments; empty if there is none.
std::string error_of(const char* where, const Access& access)
{
    const auto& [part, wanted, ids, values, routes] = access;
    const bool fits = part.own.dim() >= 1 && ids.dim() == 1 && ids.scalar_type() == at::kLong;
    const bool in_range =
        fits &&
        (ids.numel() == 0 || (ids.min().item<std::int64_t>() >= 0 && ids.max().item<std::int64_t>() < part.num_global));
    if (!in_range) {
        return fmt::format("{}: ids of type {} and {} dimensions for a tensor of {} rows; expected one dimension of "
                           "int64 from 0 to one below the number of rows.",
                           where, c10::toString(ids.scalar_type()), ids.dim(), part.num_global);
    }
    if (!values.defined() ||
        (values.dim() == part.own.dim() && values.size(0) == ids.numel() &&
         values.sizes().slice(1) == part.own.sizes().slice(1) && values.scalar_type() == part.own.scalar_type())) {
        return {};
    }
    return fmt::format("{}: values of type {} and {} rows for {} ids; expected one row for each id, of the type and "
                       "shape of the tensor's rows.",
                       where, c10::toString(values.scalar_type()), values.dim() < 1 ? 0 : values.size(0), ids.numel());
}

Access access_to(const char* where, const at::Tensor& tensor, const at::Tensor& ids, const at::Tensor& values = {})
{
    Access access{cut_rows_of(where, "rows", tensor), cut_rows_of(where, "ids", ids), {}, {}, nullptr};
    access.ids = access.wanted.own.detach().to(at::kCPU).contiguous();
    if (values.defined()) {
        if (is_sharded(values)) reduce_partials(values);
        access.values = to_local(values);
    }
    const auto group = access.part.is_cut() ? access.part.group() : access.wanted.group();
    throw_together(error_of(where, access), group);
    if (!access.part.is_cut()) return access;
    const std::span<const std::int64_t> wanted(access.ids.const_data_ptr<std::int64_t>(),
                                               static_cast<std::size_t>(access.ids.numel()));
    access.routes = RowRoutes::find(access.part.ids(), wanted, access.part.num_global, group);
    return access;
}

}  // namespace

at::Tensor gather_rows(const at::Tensor& tensor, const at::Tensor& ids)
{
    const auto access = access_to("gather_rows", tensor, ids);
    // Each rank has gradients of the rows that it wants, whose sum over the ranks is that of a tensor that all have.
    if (!access.part.is_cut() && access.wanted.is_cut()) return tensor.index_select(0, access.ids_beside(tensor));
    return access.wanted.like(access.gather(access.part.own));
}

at::Tensor scatter_add(const at::Tensor& tensor, const at::Tensor& ids, const at::Tensor& values)
{
    const auto access = access_to("scatter_add", tensor, ids, values);
    // All ranks have all rows, and each adds the values of its own ids: the result is the sum over the ranks.
    if (!access.part.is_cut() && access.wanted.is_cut())
        return tensor.index_add(0, access.ids_beside(tensor), access.wanted.like(access.values));
    return access.part.like(access.part.own + access.scatter(access.values));
}

}  // namespace meshard
