// SPDX-License-Identifier: Apache-2.0
#include "ops/slices/slice_layout.h"

#include "partition/error.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>

namespace meshard {

SpecPtr token_spec(const ShardSpec& rows)
{
    auto axes = rows.axes;
    for (auto& axis : axes) {
        if (!axis.is_shard()) continue;
        if (axis.placement.dim == 1)
            axis = {};
        else if (axis.placement.dim == 2)
            axis.placement.dim = 1;
    }
    return make_spec(rows.device_mesh, axes);
}

SpecPtr weight_gradient_spec(const ShardSpec& rows)
{
    auto axes = rows.axes;
    for (auto& axis : axes) axis = axis.is_replicate() ? AxisLayout{} : AxisLayout{Partial(), nullptr, 1};
    return make_spec(rows.device_mesh, axes);
}

SpecPtr offset_gradient_spec(const ShardSpec& rows)
{
    auto axes = rows.axes;
    for (auto& axis : axes) {
        if (axis.is_shard() && axis.placement.dim == 1) axis = {Partial(), nullptr, 1};
    }
    return make_spec(rows.device_mesh, axes);
}

at::Tensor local_in(const at::Tensor& tensor, const SpecPtr& spec)
{
    if (!spec) return tensor;
    if (is_sharded(tensor)) return *spec_of(tensor) == *spec ? local_of(tensor) : local_of(convert(tensor, spec));
    return local_of(convert(wrap(tensor, replicated_spec(spec->device_mesh)), spec));
}

at::Tensor wrapped(const at::Tensor& local, const SpecPtr& spec)
{
    return spec ? wrap(local, spec) : local;
}

void append_wrapped(std::vector<at::Tensor>& list, const std::vector<at::Tensor>& locals, const SpecPtr& spec)
{
    for (const auto& local : locals) list.push_back(local.defined() ? wrapped(local, spec) : local);
}

void sum_over_rows(at::Tensor& buffer, const SpecPtr& rows)
{
    if (!rows) return;
    for (std::size_t a = 0; a < rows->axes.size(); ++a) {
        if (rows->axes[a].is_shard() && rows->axes[a].placement.dim == 1)
            rows->device_mesh->group(a).all_reduce(buffer);
    }
}

std::vector<const RankGroup*> row_groups(const SpecPtr& rows)
{
    std::vector<const RankGroup*> groups;
    for (std::size_t a = 0; rows && a < rows->axes.size(); ++a) {
        if (rows->axes[a].is_shard() && rows->axes[a].placement.dim == 1)
            groups.push_back(&rows->device_mesh->group(static_cast<std::int64_t>(a)));
    }
    return groups;
}

void refuse_second_derivative(const char* where)
{
    if (at::GradMode::is_enabled())
        throw InvalidInput("{}: has no second derivative. Call backward without create_graph.", where);
}

}  // namespace meshard
