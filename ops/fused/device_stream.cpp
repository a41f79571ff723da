// SPDX-License-Identifier: Apache-2.0
#include "ops/fused/device_stream.h"

#include "ops/fused/device_block.h"
#include "ops/fused/tile_tensors.h"

#include <ATen/ATen.h>

namespace meshard {
namespace {

c10::impl::ExcludeDispatchKeyGuard without_autocast()
{
    return c10::impl::ExcludeDispatchKeyGuard(c10::autocast_dispatch_keyset);
}

}  // namespace

DeviceStreamPasses::DeviceStreamPasses(const at::Tensor& points, const StreamedModel& model, const std::vector<RowDraw>& noise, at::ScalarType type)
    : points_(points.contiguous()), model_(model), noise_(noise), type_(type)
{
    const auto most = model.tile_points > 0 ? model.tile_points : kDeviceTilePoints;
    for (std::int64_t sample = 0; sample < points.size(0); ++sample) {
        for (const auto& piece : device_ranges(1, points.size(1), most))
            tiles_.push_back({sample, sample * points.size(1) + piece.front().first, piece.front().count});
    }
    for (const auto& weight : weights_of(model.mlp)) mlp_.push_back(as_leaf(weight, true));
    if (model.offset.defined()) offset_ = as_leaf(model.offset, true);
    const at::NoGradGuard no_grad;
    for (const auto& block : model.blocks) layers_.emplace_back(block.shape, block.weights, type);
    const at::AutoGradMode recording(true);
    for (const auto& weight : mlp_) used_mlp_.push_back(weight.to(type));
}

at::Tensor DeviceStreamPasses::rows(const at::Tensor& points, const Tile& tile) const
{
    return points.flatten(0, 1).narrow(0, tile.first, tile.count);
}

/// The input of the first layer at a tile's points (n, in): (n, C).
at::Tensor DeviceStreamPasses::begin(const at::Tensor& points, const Tile& tile) const
{
    const auto hidden = at::linear(points.to(type_), used_mlp_[0], used_mlp_[1]);
    const auto* activation = model_.mlp.activation;
    const auto x = at::linear(activation ? activation->value(hidden, used_mlp_[4]) : at::gelu(hidden), used_mlp_[2], used_mlp_[3]);
    return offset_.defined() ? (x + offset_[tile.sample]).to(type_) : x;
}

/// A tile's points (n, C) in a layer. What is found of them is that of one sample, the tile's.
LayerPoints DeviceStreamPasses::project(std::int64_t layer, const at::Tensor& x, const Tile& tile, bool record) const
{
    const auto& block = model_.blocks[layer];
    at::Tensor noise;
    if (block.noise) noise = rows(device_noise(block, noise_[layer], points_).unflatten(0, {points_.size(0), points_.size(1)}), tile);
    return layers_[layer].project(x, {{tile.sample, 0, tile.count}}, noise, record);
}

/// The input of a layer at a tile's points, without history.
at::Tensor DeviceStreamPasses::run_to(std::int64_t layer, const Tile& tile) const
{
    const at::NoGradGuard no_grad;
    auto x = begin(rows(points_, tile), tile);
    for (std::int64_t k = 0; k < layer; ++k) {
        auto points = project(k, x, tile, false);
        x = layers_[k].bring_back(points, x, states_[k], false);
    }
    return x;
}

std::vector<SliceStates> DeviceStreamPasses::find_states(const SpecPtr& rows_of_points, bool record)
{
    const auto no_autocast = without_autocast();
    std::vector<SliceStates> slices;
    for (std::int64_t l = 0; l < num_layers(); ++l) {
        const auto& block = model_.blocks[l];
        auto sums = at::zeros({points_.size(0), block.shape.heads, block.shape.slices, block.shape.head_dim + 1}, block.weights.norm1.weight.options());
        for (const auto& tile : tiles_) {
            auto here = project(l, run_to(l, tile), tile, false);
            sums[tile.sample].add_(layers_[l].feature_sums(here)[0]);
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
    for (const auto& tile : tiles_) rows(result, tile).copy_(run_to(top + 1, tile));
    return result;
}

/// Backward of one tile from the result to the output of a layer (-1: of the MLP), whose gradient it returns; that layer's activations are left in `last`. The
/// gradients of the slice sums of all layers above are known from earlier sweeps. Each weight's gradient is added in the first sweep in which it is known: that
/// of a layer's second half when the sweep ends at this layer, that of its first half in the next one.
at::Tensor DeviceStreamPasses::sweep(std::int64_t layer, const Tile& tile, const at::Tensor& result_gradient, LayerPoints& last)
{
    const auto bottom = std::max<std::int64_t>(layer, 0), top = num_layers() - 1;
    std::vector<LayerPoints> above;
    auto x = run_to(bottom, tile);
    for (auto k = bottom; k <= top; ++k) {
        above.push_back(project(k, x, tile, true));
        x = layers_[k].bring_back(above.back(), x, states_[k], true, /*finish=*/k < top);
    }
    auto g = rows(result_gradient, tile);
    for (auto k = top; k > layer; --k) {
        auto here = std::move(above.back());
        above.pop_back();
        layers_[k].collect_gradients(false);
        const auto second = layers_[k].second_backward(here, g);
        layers_[k].collect_gradients(k == layer + 1);
        g = layers_[k].first_backward(here, states_[k], sums_gradients_[k], layers_[k].sums_of(here, second.mixed), second);
        layers_[k].collect_gradients(true);
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

    LayerPoints last;
    for (auto l = num_layers() - 1; l >= 0; --l) {
        auto state_sums = at::zeros_like(states_[l]);
        for (const auto& tile : tiles_) {
            const auto g = sweep(l, tile, result_gradient, last);
            const auto of_layer = layers_[l].second_backward(last, g);
            state_sums[tile.sample].add_(layers_[l].sums_of(last, of_layer.mixed)[0].narrow(2, 0, shape.head_dim));
        }
        auto of_slices = slices[l].backward(state_sums);
        round_totals(type_, states_[l], slices[l].sums(), of_slices.states, of_slices.sums);
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
    for (const auto& layer : layers_) found.weights.push_back(list_of(layer.weight_gradients()));
    return found;
}

}  // namespace meshard
