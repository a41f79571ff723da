// SPDX-License-Identifier: Apache-2.0
// Poolings to a given size: output o covers the inputs floor(o * in / out), ..., ceil((o + 1) * in / out) - 1. A cut
// dimension that shrinks to few outputs is pooled on each rank and the ranks' parts are merged; otherwise every rank
// receives the inputs that its own outputs cover.
#include "ops/grids/grid_cuts.h"
#include "ops/grids/plane_indices.h"
#include "ops/rules/placement_algebra.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

namespace meshard {
namespace {

/// This rank's share of a cut dimension.
struct PooledDim {
    std::int64_t dim = 0, axis = 0;
    std::int64_t in = 0, out = 0;
    Range inputs, outputs;                  ///< ranges that this rank holds, and computes (at least in part)
    std::optional<RangeExchange> exchange;  ///< none: the ranks' parts are merged

    Range covered(std::int64_t o) const { return {o * in / out, ceil_div((o + 1) * in, out)}; }
};

struct AdaptivePooling {
    std::int64_t n = 0, first = 0;  ///< number of spatial dimensions, and the first of them
    std::vector<std::int64_t> in, out;
    std::vector<PooledDim> cuts;
    AxisLayouts input_layouts, output_layouts;  ///< Replicate where parts are merged

    std::vector<std::int64_t> local_output_shape(const at::Tensor& local) const
    {
        auto shape = local.sizes().vec();
        std::ranges::copy(out, shape.begin() + first);
        for (const auto& cut : cuts) shape[cut.dim] = cut.outputs.size();
        return shape;
    }
    at::Tensor borrow(at::Tensor local) const
    {
        for (const auto& cut : cuts) {
            if (cut.exchange) local = cut.exchange->borrow(local);
        }
        return local;
    }
    at::Tensor give_back(at::Tensor gradient) const
    {
        for (auto cut = cuts.rbegin(); cut != cuts.rend(); ++cut) {
            if (cut->exchange) gradient = cut->exchange->give_back(gradient);
        }
        return gradient;
    }
    std::vector<Range> box() const
    {
        std::vector<Range> result;
        for (const auto size : in) result.push_back({0, size});
        for (const auto& cut : cuts) result[cut.dim - first] = cut.inputs;
        return result;
    }
};

std::optional<AdaptivePooling> plan(const RuleCall& call, const at::Tensor& input, std::vector<std::int64_t> out,
                                    std::int64_t n)
{
    if (out.size() == 1) out.assign(n, out[0]);
    AdaptivePooling pooling;
    pooling.n = n;
    pooling.first = input.dim() - n;
    if (std::ssize(out) != n || pooling.first < 1 || pooling.first > 2 || input.numel() == 0 ||
        !input.is_floating_point()) {
        return std::nullopt;
    }
    if (*std::ranges::min_element(out) < 1) return std::nullopt;
    pooling.in.assign(input.sizes().begin() + pooling.first, input.sizes().end());
    pooling.out = out;
    pooling.input_layouts = without_pending(layouts_of(call, input));
    const auto axes = cut_axes(pooling.input_layouts, input.dim(), pooling.first);
    if (!axes) return std::nullopt;
    pooling.output_layouts = pooling.input_layouts;
    for (std::int64_t i = 0; i < n; ++i) {
        PooledDim cut;
        cut.dim = pooling.first + i;
        cut.axis = (*axes)[cut.dim];
        if (is_whole(call, cut.axis)) {
            if (cut.axis >= 0)
                pooling.output_layouts[cut.axis] = cut_layout(pooling.input_layouts[cut.axis], cut.dim, {out[i]});
            continue;
        }
        cut.in = pooling.in[i];
        cut.out = out[i];
        const auto& layout = pooling.input_layouts[cut.axis];
        const auto me = call.coordinate(cut.axis);
        // The outputs of all ranks together are not larger than the inputs: merging parts sends less.
        if (cut.out * call.device_mesh()->size(cut.axis) <= cut.in) {
            cut.inputs = ranges_of(*layout.extents)[me];
            cut.outputs = {0, cut.out};
            pooling.output_layouts[cut.axis] = {};
        } else {
            const auto extents = extents_by_boundary(
                *layout.extents, cut.out, [&](std::int64_t a) { return (2 * a * cut.out + cut.in) / (2 * cut.in); });
            const auto outputs = ranges_of(extents);
            std::vector<Range> needed;
            for (const auto& range : outputs) {
                needed.push_back(
                    range.size() > 0 ? Range{cut.covered(range.begin).begin, cut.covered(range.end - 1).end} : Range{});
            }
            pooling.output_layouts[cut.axis] = cut_layout(layout, cut.dim, extents);
            cut.exchange.emplace(call.device_mesh()->group(cut.axis), layout, std::move(needed));
            cut.inputs = cut.exchange->needed();
            cut.outputs = outputs[me];
        }
        pooling.cuts.push_back(std::move(cut));
    }
    return pooling;
}

/// One output of each cut dimension, the local part of the inputs that it covers, and the share of that part in all
/// inputs that it covers.
struct Block {
    at::Tensor output, input;
    std::vector<Range> box;
    at::Tensor second_output = {};  ///< narrowed like `output`
    double share = 1;
};

/// Calls `f` for every block of outputs that covers inputs of this rank.
template <class F>
void for_each_block(const AdaptivePooling& pooling, Block block, F&& f, std::size_t level = 0)
{
    if (level == pooling.cuts.size()) return f(block);
    const auto& cut = pooling.cuts[level];
    for (auto o = cut.outputs.begin; o < cut.outputs.end; ++o) {
        const auto covered = cut.covered(o);
        const auto held = overlap(covered, cut.inputs);
        if (held.size() == 0) continue;
        Block inner = block;
        inner.output = block.output.narrow(cut.dim, o - cut.outputs.begin, 1);
        if (block.second_output.defined())
            inner.second_output = block.second_output.narrow(cut.dim, o - cut.outputs.begin, 1);
        inner.input = block.input.narrow(cut.dim, held.begin - cut.inputs.begin, held.size());
        inner.box[cut.dim - pooling.first] = held;
        inner.share *= static_cast<double>(held.size()) / static_cast<double>(covered.size());
        for_each_block(pooling, std::move(inner), f, level + 1);
    }
}

/// The operator's size argument within a block: one output along every cut dimension.
std::vector<std::int64_t> block_size(const AdaptivePooling& pooling)
{
    auto size = pooling.out;
    for (const auto& cut : pooling.cuts) size[cut.dim - pooling.first] = 1;
    return size;
}

/// _adaptive_avg_poolNd(self, output_size)
template <int N>
void average(RuleCall& call)
{
    const auto input = call.tensor(0);
    const auto pooling = plan(call, input, call.arg(1).toIntVector(), N);
    if (!pooling) return gathered_rule(call);

    call.reduce({input});
    const auto piece = pooling->borrow(local_of(input));
    const auto result = at::zeros(pooling->local_output_shape(local_of(input)), piece.options());
    const auto size = block_size(*pooling);
    if (result.numel() > 0) {
        for_each_block(*pooling, {result, piece, pooling->box()}, [&](const Block& block) {
            const auto mean =
                N == 2 ? at::_adaptive_avg_pool2d(block.input, size) : at::_adaptive_avg_pool3d(block.input, size);
            block.output.copy_(block.share == 1 ? mean : mean * block.share);
        });
    }
    auto layouts = pooling->output_layouts;
    for (const auto& cut : pooling->cuts) {
        if (!cut.exchange) layouts[cut.axis] = {Partial(), nullptr, 1};
    }
    call.finish({wrap(result, call.spec(layouts))});
}

/// _adaptive_avg_poolNd_backward(grad_output, self)
template <int N>
void average_backward(RuleCall& call)
{
    const auto gradient = call.tensor(0), input = call.tensor(1);
    if (gradient.dim() != input.dim() || gradient.dim() < N) return gathered_rule(call);
    const auto pooling = plan(call, input, gradient.sizes().slice(gradient.dim() - N).vec(), N);
    if (!pooling) return gathered_rule(call);

    call.reduce({gradient});
    const auto local = local_of(with_layouts(call, gradient, pooling->output_layouts));
    const auto spec = call.spec(pooling->input_layouts);
    auto shape = spec->local_shape(input.sizes());
    for (const auto& cut : pooling->cuts) shape[cut.dim] = cut.inputs.size();
    const auto of_piece = at::zeros(shape, local.options());
    if (local.numel() > 0 && of_piece.numel() > 0) {
        for_each_block(*pooling, {local, of_piece, pooling->box()}, [&](const Block& block) {
            const auto part = block.share == 1 ? block.output : block.output * block.share;
            block.input.add_(N == 2 ? at::_adaptive_avg_pool2d_backward(part, block.input)
                                    : at::_adaptive_avg_pool3d_backward(part, block.input));
        });
    }
    call.finish({wrap(pooling->give_back(of_piece), spec)});
}

/// adaptive_max_poolNd(self, output_size) -> output, indices into the whole's plane
template <int N>
void largest(RuleCall& call)
{
    const auto input = call.tensor(0);
    const auto pooling = plan(call, input, call.arg(1).toIntVector(), N);
    if (!pooling) return gathered_rule(call);

    call.reduce({input});
    const auto piece = pooling->borrow(local_of(input));
    const auto shape = pooling->local_output_shape(local_of(input));
    auto values = at::full(shape, -std::numeric_limits<double>::infinity(), piece.options());
    auto indices = at::full(shape, kNoIndex, piece.options().dtype(at::kLong));
    const auto size = block_size(*pooling);
    if (values.numel() > 0) {
        for_each_block(*pooling, {values, piece, pooling->box(), indices}, [&](const Block& block) {
            const auto [value, index] =
                N == 2 ? at::adaptive_max_pool2d(block.input, size) : at::adaptive_max_pool3d(block.input, size);
            const auto box_shape = block.input.sizes().slice(pooling->first).vec();
            block.output.copy_(value);
            block.second_output.copy_(indices_in_whole(index, block.box, box_shape, pooling->in));
        });
    }
    for (const auto& cut : pooling->cuts) {
        if (!cut.exchange) merge_extremes(call, cut.axis, /*max=*/true, values, indices);
    }
    const auto spec = call.spec(pooling->output_layouts);
    call.finish({wrap(values, spec), wrap(indices, spec)});
}

/// adaptive_max_poolNd_backward(grad_output, self, indices)
template <int N>
void largest_backward(RuleCall& call)
{
    const auto gradient = call.tensor(0), input = call.tensor(1), indices = call.tensor(2);
    if (gradient.dim() != input.dim() || gradient.dim() < N) return gathered_rule(call);
    const auto pooling = plan(call, input, gradient.sizes().slice(gradient.dim() - N).vec(), N);
    if (!pooling) return gathered_rule(call);

    call.reduce({gradient, indices});
    const auto local_gradient = local_of(with_layouts(call, gradient, pooling->output_layouts));
    const auto local_indices = local_of(with_layouts(call, indices, pooling->output_layouts));
    const auto of_box = scatter_to_box(local_gradient, local_indices, pooling->box(), pooling->in);
    call.finish({wrap(pooling->give_back(of_box), call.spec(pooling->input_layouts))});
}

const RuleRegistration adaptive_pooling_rules[] = {
    {"pooling", {"aten::_adaptive_avg_pool2d"}, average<2>},
    {"pooling", {"aten::_adaptive_avg_pool3d"}, average<3>},
    {"pooling", {"aten::_adaptive_avg_pool2d_backward"}, average_backward<2>},
    {"pooling", {"aten::_adaptive_avg_pool3d_backward"}, average_backward<3>},
    {"pooling", {"aten::adaptive_max_pool2d"}, largest<2>},
    {"pooling", {"aten::adaptive_max_pool3d"}, largest<3>},
    {"pooling", {"aten::adaptive_max_pool2d_backward"}, largest_backward<2>},
    {"pooling", {"aten::adaptive_max_pool3d_backward"}, largest_backward<3>},
};

}  // namespace
}  // namespace meshard
