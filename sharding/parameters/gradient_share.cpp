// SPDX-License-Identifier: Apache-2.0
#include "sharding/parameters/gradient_share.h"

#include "partition/error.h"
#include "partition/lists.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>

#include <cmath>

namespace meshard {

bool is_first_of_its_domain(const DeviceMesh& mesh)
{
    for (std::int64_t a = 0; a < mesh.num_axes(); ++a) {
        if (mesh.axis_names()[a] != "data" && mesh.coordinate(a) != 0) return false;
    }
    return true;
}

at::Tensor gradient_share(const at::Tensor& gradient, const DeviceMesh& device_mesh, const GradientOrigin& origin)
{
    if (!is_sharded(gradient)) {
        for (const auto& axis : origin.share_axes) {
            if (!device_mesh.has_axis(axis))
                throw InvalidInput("replicate: a plain gradient is a share of the ranks along the axis '{}', which the "
                                   "device mesh of the parameters does not have. Cut what goes through "
                                   "from_local on every axis, or on that device mesh.",
                                   axis);
        }
        bool counts = true;
        std::int64_t not_averaged = 1;
        for (std::int64_t a = 0; a < device_mesh.num_axes(); ++a) {
            const auto& name = device_mesh.axis_names()[a];
            const bool is_share = contains(origin.share_axes, name), is_data = name == "data";
            if (is_data && is_share) not_averaged = device_mesh.size(a);
            if (!is_data && !is_share && device_mesh.coordinate(a) != 0) counts = false;
        }
        if (!counts) return at::zeros_like(gradient);
        return not_averaged > 1 ? gradient.mul(static_cast<double>(not_averaged)) : gradient;
    }
    // A gradient is gathered on every axis on which it is neither a pending sum nor Replicate.
    auto whole = gradient;
    for (const auto& axis : spec_of(gradient)->axes) {
        if (axis.is_shard() || (axis.is_partial() && axis.placement.reduction != Reduction::Sum)) {
            whole = convert(gradient, replicated_spec(spec_of(gradient)->device_mesh));
            break;
        }
    }
    const auto& spec = *spec_of(whole);
    bool counts = true;
    std::int64_t not_averaged = 1;
    for (std::size_t a = 0; a < spec.axes.size(); ++a) {
        const bool is_data = spec.device_mesh->axis_names()[a] == "data";
        if (is_data && spec.axes[a].is_partial()) not_averaged = spec.device_mesh->size(a);
        if (!is_data && spec.axes[a].is_replicate() && spec.device_mesh->coordinate(a) != 0) counts = false;
    }
    if (!counts) return at::zeros_like(local_of(whole));
    const auto part = local_of(whole).detach();
    return not_averaged > 1 ? part.mul(static_cast<double>(not_averaged)) : part;
}

void fill_as_absent(const at::Tensor& gradient)
{
    gradient.fill_(-0.0);
}

bool is_absent(const at::Tensor& sum)
{
    if (sum.numel() == 0) return false;
    if (sum.is_complex()) {
        const auto parts = at::view_as_real(sum.flatten()[0]);
        return is_absent(parts) && parts[1].item<double>() == 0;
    }
    const auto first = sum.flatten()[0].item<double>();
    return first == 0.0 && std::signbit(first);
}

}  // namespace meshard
