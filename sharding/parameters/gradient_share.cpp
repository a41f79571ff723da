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
            if (axis.size() > 1 && !device_mesh.has_axis(axis))
                throw InvalidInput("replicate: a plain gradient is a share of the {} ranks along the axis '{}', which "
                                   "the device mesh of the parameters does not have with these ranks. Cut what goes "
                                   "through from_local on every axis, or on that device mesh.",
                                   axis.size(), axis.name);
        }
        bool counts = true;
        std::int64_t not_averaged = 1;
        for (std::int64_t a = 0; a < device_mesh.num_axes(); ++a) {
            const auto& name = device_mesh.axis_names()[a];
            const bool is_data = name == "data", is_share = contains(origin.share_axes, device_mesh.known_axis(a)) ||
                                                            contains(origin.share_axes, device_mesh.own_axis(a));
            if (is_data && is_share) not_averaged = device_mesh.size(a);
            if (!is_data && !is_share && device_mesh.coordinate(a) != 0) counts = false;
        }
        if (!counts) return at::zeros_like(gradient);
        return not_averaged > 1 ? gradient.mul(static_cast<double>(not_averaged)) : gradient;
    }
    // A gradient is gathered where on an axis it is neither a pending sum nor Replicate, or pending on one that the
    // parameters' mesh does not have.
    auto whole = gradient;
    const auto mesh = spec_of(gradient)->device_mesh;
    std::vector<MeshAxis> shared;
    bool is_gathered = false, is_of_cases = false;
    for (std::int64_t a = 0; a < mesh->num_axes(); ++a) {
        const auto& layout = spec_of(gradient)->axes[a];
        const auto axis = mesh->known_axis(a);
        const bool is_shared = axis.size() == 1 || device_mesh.has_axis(axis);
        if (is_shared) shared.push_back(axis);
        is_of_cases |= !is_shared && axis.name == "data" && layout.is_replicate();
        is_gathered |=
            layout.is_shard() || (layout.is_partial() && (layout.placement.reduction != Reduction::Sum || !is_shared));
    }
    bool counts = true;
    for (std::int64_t a = 0; a < device_mesh.num_axes(); ++a) {
        const auto axis = device_mesh.known_axis(a);
        if (axis.name == "data" || axis.size() == 1 || contains(shared, axis)) continue;
        if (is_of_cases)
            throw InvalidInput("replicate: a gradient is of other cases along an axis 'data', which the device mesh of "
                               "the parameters does not have. Pass the device mesh with that axis to replicate.");
        if (device_mesh.coordinate(a) != 0) counts = false;
    }
    if (is_gathered) whole = convert(gradient, replicated_spec(mesh));
    const auto& axes = spec_of(whole)->axes;
    std::int64_t not_averaged = 1;
    for (std::int64_t a = 0; a < mesh->num_axes(); ++a) {
        const auto& name = mesh->axis_names()[a];
        if (name == "data" && axes[a].is_partial()) not_averaged = mesh->size(a);
        if (name != "data" && contains(shared, mesh->known_axis(a)) && axes[a].is_replicate() &&
            mesh->coordinate(a) != 0)
            counts = false;
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
