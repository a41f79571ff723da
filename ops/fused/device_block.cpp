// SPDX-License-Identifier: Apache-2.0
#include "ops/fused/device_block.h"

#include "ops/fused/tile_tensors.h"

#include <ATen/ATen.h>

namespace meshard {
namespace {

/// The leaves of a call, made by its first pass.
const BlockWeights<at::Tensor>& leaves_in(BlockCall& call, const BlockWeights<at::Tensor>& weights)
{
    if (!call.leaves.norm1.weight.defined()) call.leaves = leaves_of(weights);
    return call.leaves;
}

}  // namespace

DeviceBlockPasses::DeviceBlockPasses(BlockCall& call, const at::Tensor& x, const BlockWeights<at::Tensor>& weights)
    : call_(call), x_(x.contiguous()), weights_(leaves_in(call, weights)), block_(call.block.shape, weights_, x_.scalar_type())
{
}

at::Tensor DeviceBlockPasses::rows(const at::Tensor& points, const Tile& tile) const
{
    return points.flatten(0, 1).narrow(0, tile.first, tile.count);
}

at::Tensor DeviceBlockPasses::no_sums(std::int64_t width) const
{
    const auto& shape = call_.block.shape;
    return at::zeros({x_.size(0), shape.heads, shape.slices, width}, x_.options().dtype(at::kDouble));
}

at::Tensor DeviceBlockPasses::forward(const std::vector<at::Tensor>& attend_weights)
{
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const bool keep = call_.options.keep_activations, record = keep && call_.recorded;
    auto sums = no_sums(call_.block.shape.head_dim + 1);
    std::vector<RecordedTile> kept;
    for (const auto& tile : call_.tiles) {
        auto points = block_.projected(rows(x_, tile), record);
        sums[tile.sample].add_(block_.slice_sums(points, points.features));
        if (!record) points.features.reset();
        if (keep) kept.push_back(std::move(points));
    }
    const auto type = weights_.norm1.weight.scalar_type();
    call_.slices = std::make_unique<SliceStates>(sums, type, call_.block.epsilon, call_.block.attend, attend_weights, call_.rows, call_.recorded);

    const auto& shape = call_.block.shape;
    auto result = at::empty({x_.size(0), x_.size(1), shape.out_channels()}, shape.outputs > 0 ? x_.options().dtype(type) : x_.options());
    for (std::size_t i = 0; i < call_.tiles.size(); ++i) {
        const auto& tile = call_.tiles[i];
        auto points = keep ? kept[i] : block_.projected(rows(x_, tile), false);
        block_.bring_back(points, call_.slices->states()[tile.sample], record);
        rows(result, tile).copy_(points.result.detach());
        if (record)
            call_.recorded_tiles.push_back(std::move(points));
        else if (keep)
            kept[i] = RecordedTile();
    }
    return result;
}

BlockPassGradients DeviceBlockPasses::backward(const at::Tensor& result_gradient)
{
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const auto& shape = call_.block.shape;
    const auto& states = call_.slices->states();
    const auto gradients = zeros_like(weights_);
    auto x_gradient = at::empty_like(x_), mixed_gradient = at::empty({x_.size(0), x_.size(1), shape.inner()}, x_.options());
    const auto recorded = [&](std::size_t i) { return i < call_.recorded_tiles.size() ? call_.recorded_tiles[i] : RecordedTile(); };

    auto state_sums = no_sums(shape.head_dim);
    for (std::size_t i = 0; i < call_.tiles.size(); ++i) {
        const auto& tile = call_.tiles[i];
        auto points = recorded(i);
        if (!points.result.defined()) {
            points = block_.projected(rows(x_, tile), false);
            block_.bring_back(points, states[tile.sample], true);
        }
        const auto found = block_.second_backward(points, rows(result_gradient, tile), &gradients);
        rows(x_gradient, tile).copy_(found.x);
        rows(mixed_gradient, tile).copy_(found.mixed);
        state_sums[tile.sample].add_(block_.slice_sums(points, found.mixed).narrow(2, 0, shape.head_dim));
    }
    auto of_slices = call_.slices->backward(state_sums);

    for (std::size_t i = 0; i < call_.tiles.size(); ++i) {
        const auto& tile = call_.tiles[i];
        auto points = recorded(i);
        if (!points.features.defined()) points = block_.projected(rows(x_, tile), true);
        rows(x_gradient, tile).add_(block_.first_backward(points, states[tile.sample], of_slices.sums[tile.sample], rows(mixed_gradient, tile), &gradients));
    }
    return {x_gradient, list_of(gradients), std::move(of_slices.weights)};
}

}  // namespace meshard
