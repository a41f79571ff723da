// SPDX-License-Identifier: Apache-2.0
#include "ops/grids/grid_cuts.h"

#include <algorithm>
#include <numeric>

namespace meshard {

std::optional<std::vector<std::int64_t>> cut_axes(const AxisLayouts& layouts, std::int64_t num_dims,
                                                  std::int64_t first_spatial)
{
    std::vector<std::int64_t> axes(num_dims, -1);
    for (std::size_t a = 0; a < layouts.size(); ++a) {
        if (!layouts[a].is_shard()) continue;
        const auto dim = layouts[a].placement.dim;
        if (axes[dim] >= 0 || (dim >= first_spatial && layouts[a].blocks > 1)) return std::nullopt;
        axes[dim] = static_cast<std::int64_t>(a);
    }
    return axes;
}

std::vector<std::int64_t> one_a_dim(const c10::IValue& value, std::int64_t n)
{
    auto list = value.toIntVector();
    if (list.size() == 1) list.assign(n, list[0]);
    return list;
}

bool is_whole(const RuleCall& call, std::int64_t axis)
{
    return axis < 0 || call.device_mesh()->size(axis) == 1;
}

AxisLayout cut_layout(const AxisLayout& like, std::int64_t dim, Extents extents)
{
    if (extents == *like.extents) return {Shard(dim), like.extents, 1};
    return {Shard(dim), std::make_shared<Extents>(std::move(extents)), 1};
}

Extents extents_by_boundary(const Extents& in, std::int64_t out,
                            const std::function<std::int64_t(std::int64_t)>& boundary)
{
    const auto total = std::accumulate(in.begin(), in.end(), std::int64_t{0});
    Extents extents;
    std::int64_t a = 0, begin = 0;
    for (std::size_t r = 0; r < in.size(); ++r) {
        a += in[r];
        const bool last = r + 1 == in.size() || (a == total && a > 0);
        const auto end = last ? out : a == 0 ? 0 : std::clamp(boundary(a), begin, out);
        extents.push_back(end - begin);
        begin = end;
    }
    return extents;
}

Range SlidingWindow::window(const Range& outputs) const
{
    if (outputs.size() <= 0) return {};
    return {outputs.begin * stride - padding, (outputs.end - 1) * stride - padding + reach() + 1};
}

Extents SlidingWindow::out_extents(const Extents& in_extents) const
{
    return extents_by_boundary(in_extents, out,
                               [this](std::int64_t a) { return ceil_div(a + padding - reach() / 2, stride); });
}

Clipped clip(const Range& range, std::int64_t size)
{
    Clipped clipped;
    clipped.inside = {std::clamp<std::int64_t>(range.begin, 0, size), std::clamp<std::int64_t>(range.end, 0, size)};
    clipped.before = std::min(std::max<std::int64_t>(0, -range.begin), range.size());
    clipped.after = range.size() - clipped.before - clipped.inside.size();
    return clipped;
}

}  // namespace meshard
