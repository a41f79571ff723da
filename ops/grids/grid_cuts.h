// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/grids/range_exchange.h"
#include "ops/rules/rank_parts.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace meshard {

/// The axis that cuts each dimension of a tensor with these layouts, -1 for none. Returns nothing if a dimension from
/// `first_spatial` on is cut in blocks, or one is cut twice: grid neighbours are then not on neighbouring ranks.
std::optional<std::vector<std::int64_t>> cut_axes(const AxisLayouts& layouts, std::int64_t num_dims,
                                                  std::int64_t first_spatial);

/// An argument with one number for each of `n` dimensions, or one number for all.
std::vector<std::int64_t> one_a_dim(const c10::IValue& value, std::int64_t n);

/// Returns whether `axis` cuts nothing: it is -1, or has one rank.
bool is_whole(const RuleCall& call, std::int64_t axis);

/// The layout Shard(dim) with these extents; shares the extents object of `like` if they are equal.
AxisLayout cut_layout(const AxisLayout& like, std::int64_t dim, Extents extents);

/// Extents of an output with `out` entries: a boundary between two ranks at entry a of the input becomes one at
/// `boundary(a)`, which must not decrease with a; values outside the output are clamped. The first and the last rank
/// that own entries extend to the ends.
Extents extents_by_boundary(const Extents& in, std::int64_t out,
                            const std::function<std::int64_t(std::int64_t)>& boundary);

/// floor(a / b) and the smallest integer that is not less than a / b; b > 0, a of any sign.
constexpr std::int64_t floor_div(std::int64_t a, std::int64_t b)
{
    return a / b - (a % b < 0);
}
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b)
{
    return a / b + (a % b > 0);
}

/// The windows of a convolution or a pooling along one dimension: output o reads the inputs o * stride - padding + k *
/// dilation, k < kernel.
struct SlidingWindow {
    std::int64_t in = 0, out = 0;
    std::int64_t kernel = 1, stride = 1, padding = 0, dilation = 1;

    /// Distance between a window's first and last entry.
    std::int64_t reach() const { return dilation * (kernel - 1); }

    /// Number of windows that end within the padded input (a negative number if there is none).
    std::int64_t count_outputs() const { return floor_div(in + 2 * padding - reach() - 1, stride) + 1; }

    /// The range from the first entry of the first window to the last of the last one, including entries beyond the
    /// input's ends. Empty for no outputs.
    Range window(const Range& outputs) const;

    /// Extents of the outputs: a rank computes the outputs whose window has its centre among the owned inputs. With
    /// stride 1 and equal sizes the extents stay the same.
    Extents out_extents(const Extents& in_extents) const;
};

/// A range that may reach beyond the dimension: the part inside, and the numbers of entries missing before and after.
struct Clipped {
    Range inside;
    std::int64_t before = 0, after = 0;
};
Clipped clip(const Range& range, std::int64_t size);

}  // namespace meshard
