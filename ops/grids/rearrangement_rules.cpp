// SPDX-License-Identifier: Apache-2.0
// Pixel shuffle and unshuffle, and channel shuffle. No value changes, and cut rows stay on their rank.
#include "ops/grids/grid_cuts.h"
#include "ops/rules/placement_algebra.h"

#include <ATen/ATen.h>

namespace meshard {
namespace {

/// Layouts with whole channels and no Partial.
AxisLayouts with_whole_channels(const RuleCall& call, const at::Tensor& tensor, std::int64_t channels)
{
    auto layouts = layouts_of(call, tensor);
    for (auto& layout : layouts) {
        if (layout.is_partial() || (layout.is_shard() && layout.placement.dim == channels)) layout = {};
    }
    return layouts;
}

/// pixel_shuffle(self, upscale_factor): (..., C r^2, H, W) to (..., C, H r, W r); pixel_unshuffle is the inverse.
void pixel_shuffle(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    const auto r = call.arg(1).toInt();
    const auto num_dims = tensor.dim(), channels = num_dims - 3;
    const bool joins = call.name() == "aten::pixel_unshuffle";
    if (channels < 0 || r < 1 || tensor.numel() == 0) return gathered_rule(call);
    auto shape = tensor.sizes().vec();
    if (joins ? shape[channels + 1] % r != 0 || shape[channels + 2] % r != 0 : shape[channels] % (r * r) != 0)
        return gathered_rule(call);
    for (std::int64_t d = channels; d < num_dims; ++d) {
        const auto factor = d == channels ? r * r : r;
        shape[d] = (d == channels) == joins ? shape[d] * factor : shape[d] / factor;
    }

    auto in = with_whole_channels(call, tensor, channels);
    if (!cut_axes(in, num_dims, channels)) return gathered_rule(call);
    auto out = in;
    for (std::size_t a = 0; a < in.size(); ++a) {
        const auto dim = in[a].placement.dim;
        if (!in[a].is_shard() || dim < channels) continue;
        Extents extents = *in[a].extents, pixels;
        // Entries that are joined must be on one rank.
        if (joins)
            extents = extents_by_boundary(extents, shape[dim], [&](std::int64_t end) { return (end + r / 2) / r; });
        for (const auto extent : extents) pixels.push_back(extent * r);
        out[a] = cut_layout(in[a], dim, joins ? extents : pixels);
        if (joins) in[a] = cut_layout(in[a], dim, pixels);
    }
    call.reduce({tensor});
    const auto spec = call.spec(out);
    const auto local = local_of(with_layouts(call, tensor, in));
    if (local.numel() == 0) return call.finish({wrap(at::empty(spec->local_shape(shape), local.options()), spec)});
    call.arg(0) = local;
    call.run({spec});
}

/// channel_shuffle(self, groups), native_channel_shuffle(self, groups)
void channel_shuffle(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    if (tensor.dim() < 3 || tensor.numel() == 0) return gathered_rule(call);
    const auto layouts = with_whole_channels(call, tensor, 1);
    call.reduce({tensor});
    const auto spec = call.spec(layouts);
    const auto local = local_of(with_layouts(call, tensor, layouts));
    if (local.numel() == 0) return call.finish({wrap(local, spec)});
    call.arg(0) = local;
    call.run({spec});
}

const RuleRegistration rearrangement_rules[] = {
    {"rearrangement", {"aten::pixel_shuffle", "aten::pixel_unshuffle"}, pixel_shuffle},
    {"rearrangement", {"aten::channel_shuffle", "aten::native_channel_shuffle"}, channel_shuffle},
};

}  // namespace
}  // namespace meshard
