// SPDX-License-Identifier: Apache-2.0
#include "ops/fused/device_stream.h"

#include "ops/fused/tile_tensors.h"

#include <ATen/ATen.h>

namespace meshard {
namespace {

c10::impl::ExcludeDispatchKeyGuard without_autocast()
{
    return c10::impl::ExcludeDispatchKeyGuard(c10::autocast_dispatch_keyset);
}

}  // namespace

DeviceStreamPasses::DeviceStreamPasses(const at::Tensor& points, const StreamedModel& model, at::ScalarType type)
    : points_(points.contiguous()), model_(model), type_(type),
      tiles_(cut_tiles(points.size(0), points.size(1), model.tile_points > 0 ? model.tile_points : kDeviceTilePoints))
{
    for (const auto& weight : weights_of(model.mlp)) mlp_.push_back(as_leaf(weight, true));
    if (model.offset.defined()) offset_ = as_leaf(model.offset, true);
    for (const auto& block : model.blocks) layers_.emplace_back(block.shape, leaves_of(block.weights), type);
    const at::AutoGradMode recording(true);
    for (const auto& weight : mlp_) used_mlp_.push_back(weight.to(type));
}

at::Tensor DeviceStreamPasses::rows(const at::Tensor& points, const Tile& tile) const
{
    return points.flatten(0, 1).narrow(0, tile.first, tile.count);
}

at::Tensor DeviceStreamPasses::no_sums(std::int64_t width) const
{
    const auto& shape = model_.blocks.front().shape;
    return at::zeros({points_.size(0), shape.heads, shape.slices, width}, points_.options().dtype(at::kDouble));
}

/// The input of the first layer at a tile's points (n, in): (n, C).
at::Tensor DeviceStreamPasses::begin(const at::Tensor& points, const Tile& tile) const
{
    const auto hidden = at::linear(points.to(type_), used_mlp_[0], used_mlp_[1]);
    const auto* activation = model_.mlp.activation;
    const auto x = at::linear(activation ? activation->value(hidden, used_mlp_[4]) : at::gelu(hidden), used_mlp_[2], used_mlp_[3]);
    return offset_.defined() ? (x + offset_[tile.sample]).to(type_) : x;
}

RecordedTile DeviceStreamPasses::through(std::int64_t layer, const at::Tensor& x, const Tile& tile, bool record_first, bool record_second) const
{
    auto found = layers_[layer].projected(x, record_first, record_first);
    layers_[layer].bring_back(found, states_[layer][tile.sample], record_second);
    return found;
}

/// The input of a layer at a tile's points, without history.
at::Tensor DeviceStreamPasses::run_to(std::int64_t layer, const Tile& tile) const
{
    const at::NoGradGuard no_grad;
    auto x = begin(rows(points_, tile), tile);
    for (std::int64_t k = 0; k < layer; ++k) x = through(k, x, tile, false, false).result.to(type_);
    return x;
}

std::vector<SliceStates> DeviceStreamPasses::find_states(const SpecPtr& rows_of_points, bool record)
{
    const auto no_autocast = without_autocast();
    std::vector<SliceStates> slices;
    for (std::int64_t l = 0; l < num_layers(); ++l) {
        const auto& block = model_.blocks[l];
        auto sums = no_sums(block.shape.head_dim + 1);
        for (const auto& tile : tiles_) {
            const auto here = layers_[l].projected(run_to(l, tile), false);
            sums[tile.sample].add_(layers_[l].slice_sums(here, here.features));
        }
        slices.emplace_back(sums, points_.scalar_type(), block.epsilon, block.attend, block.attend_weights, rows_of_points, record);
        states_.push_back(slices.back().states());
    }
    return slices;
}

at::Tensor DeviceStreamPasses::result() const
{
    const auto no_autocast = without_autocast();
    const auto top = num_layers() - 1;
    const auto result = at::empty({points_.size(0), points_.size(1), model_.blocks[top].shape.out_channels()}, points_.options());
    for (const auto& tile : tiles_) rows(result, tile).copy_(through(top, run_to(top, tile), tile, false, false).result);
    return result;
}

/// Backward of one tile from the result to the output of a layer (-1: of the MLP), whose gradient it returns; that layer's activations are left in `last`. The
/// gradients of the slice sums of all layers above are known from earlier sweeps. Each weight's gradient is added in the first sweep in which it is known: that
/// of a layer's second half when the sweep ends at this layer, that of its first half in the next one.
at::Tensor DeviceStreamPasses::sweep(std::int64_t layer, const Tile& tile, const at::Tensor& result_gradient, RecordedTile& last) const
{
    std::vector<RecordedTile> above;
    auto x = run_to(std::max<std::int64_t>(layer, 0), tile);
    for (auto k = std::max<std::int64_t>(layer, 0); k < num_layers(); ++k) {
        above.push_back(through(k, x, tile, k > layer, true));
        x = above.back().result.detach().to(type_);
    }
    auto g = rows(result_gradient, tile);
    for (auto k = num_layers() - 1; k > layer; --k) {
        const auto here = std::move(above.back());
        above.pop_back();
        const auto found = layers_[k].second_backward(here, g, nullptr);
        g = found.x +
            layers_[k].first_backward(here, states_[k][tile.sample], sums_gradients_[k][tile.sample], found.mixed, k == layer + 1 ? &gradients_[k] : nullptr);
    }
    if (layer >= 0) last = std::move(above.back());
    return g;
}

StreamGradients DeviceStreamPasses::backward(const std::vector<SliceStates>& slices, const at::Tensor& result_gradient, bool wants_points)
{
    const auto no_autocast = without_autocast();
    const auto& shape = model_.blocks.front().shape;
    StreamGradients found;
    found.attend_weights.resize(num_layers());
    sums_gradients_.resize(num_layers());
    for (const auto& layer : slices) states_.push_back(layer.states());
    for (const auto& block : model_.blocks) gradients_.push_back(zeros_like(block.weights));

    RecordedTile last;
    for (auto l = num_layers() - 1; l >= 0; --l) {
        auto state_sums = no_sums(shape.head_dim);
        for (const auto& tile : tiles_) {
            const auto g = sweep(l, tile, result_gradient, last);
            const auto of_layer = layers_[l].second_backward(last, g, &gradients_[l]);
            state_sums[tile.sample].add_(layers_[l].slice_sums(last, of_layer.mixed).narrow(2, 0, shape.head_dim));
        }
        auto of_slices = slices[l].backward(state_sums);
        sums_gradients_[l] = of_slices.sums;
        found.attend_weights[l] = std::move(of_slices.weights);
    }

    if (wants_points) found.points = at::empty_like(points_);
    for (const auto& weight : mlp_) found.mlp.push_back(at::zeros_like(weight));
    if (offset_.defined()) found.offset = at::zeros_like(offset_);
    for (const auto& tile : tiles_) {
        const auto g = sweep(-1, tile, result_gradient, last);
        const at::AutoGradMode recording(true);
        const auto x = as_leaf(rows(points_, tile), wants_points);
        const auto result = begin(x, tile);
        std::vector<at::Tensor> inputs = mlp_;
        if (offset_.defined()) inputs.push_back(offset_);
        if (wants_points) inputs.push_back(x);
        const auto gradients = gradients_of({result}, inputs, {g.to(result.scalar_type())});
        for (std::size_t i = 0; i < mlp_.size(); ++i) {
            if (gradients[i].defined()) found.mlp[i].add_(gradients[i]);
        }
        if (offset_.defined()) found.offset.add_(gradients[mlp_.size()]);
        if (wants_points) rows(found.points, tile).copy_(gradients.back());
    }
    for (const auto& layer : gradients_) found.weights.push_back(list_of(layer));
    return found;
}

}  // namespace meshard
