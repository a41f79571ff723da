// SPDX-License-Identifier: Apache-2.0
#include "ops/fused/device_stream.h"

#include "ops/fused/device_block.h"
#include "ops/fused/tile_tensors.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace meshard {
namespace {

c10::impl::ExcludeDispatchKeyGuard without_autocast()
{
    return c10::impl::ExcludeDispatchKeyGuard(c10::autocast_dispatch_keyset);
}

}  // namespace

DeviceStreamPasses::DeviceStreamPasses(const at::Tensor& points, const StreamedModel& model,
                                       const std::vector<RowDraw>& noise, at::ScalarType type)
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

/// The first layer's input at a tile's points: (n, in) to (n, C).
at::Tensor DeviceStreamPasses::begin(const at::Tensor& points, const Tile& tile) const
{
    const auto hidden = at::linear(points.to(type_), used_mlp_[0], used_mlp_[1]);
    const auto* activation = model_.mlp.activation;
    const auto x =
        at::linear(activation ? activation->value(hidden, used_mlp_[4]) : at::gelu(hidden), used_mlp_[2], used_mlp_[3]);
    return offset_.defined() ? (x + offset_[tile.sample]).to(type_) : x;
}

/// Projects a tile's points (n, C) in a layer, as points of a single sample.
LayerPoints DeviceStreamPasses::project(std::int64_t layer, const at::Tensor& x, const Tile& tile, bool record) const
{
    const auto& block = model_.blocks[layer];
    at::Tensor noise;
    if (block.noise)
        noise =
            rows(device_noise(block, noise_[layer], points_).unflatten(0, {points_.size(0), points_.size(1)}), tile);
    return layers_[layer].project(x, {{tile.sample, 0, tile.count}}, noise, record);
}

at::Tensor DeviceStreamPasses::output(std::int64_t layer, const at::Tensor& x, const Tile& tile) const
{
    auto points = project(layer, x, tile, false);
    return layers_[layer].second_half(points, x, states_[layer], false);
}

/// A layer's input at a tile's points, computed from the nearest kept input before it.
at::Tensor DeviceStreamPasses::input(std::int64_t layer, const Tile& tile) const
{
    const auto kept = layer / kStreamLayersApart;
    auto x = kept == 0 ? begin(rows(points_, tile), tile) : rows(inputs_[kept - 1], tile);
    for (auto k = kept * kStreamLayersApart; k < layer; ++k) x = output(k, x, tile);
    return x;
}

void DeviceStreamPasses::start_first_layer()
{
    x_ = at::empty({points_.size(0), points_.size(1), model_.blocks.front().shape.channels},
                   points_.options().dtype(type_));
    for (const auto& tile : tiles_) rows(x_, tile).copy_(begin(rows(points_, tile), tile));
}

/// Replaces the input of a layer by that of the next one.
void DeviceStreamPasses::advance_layer(std::int64_t layer)
{
    for (const auto& tile : tiles_) {
        const auto x = rows(x_, tile);
        x.copy_(output(layer, x, tile));
    }
}

std::vector<SliceStates> DeviceStreamPasses::find_states(const SpecPtr& rows_of_points, bool record)
{
    const at::NoGradGuard no_grad;
    const auto no_autocast = without_autocast();
    std::vector<SliceStates> slices;
    start_first_layer();
    for (std::int64_t l = 0; l < num_layers(); ++l) {
        const auto& block = model_.blocks[l];
        auto sums = at::zeros({points_.size(0), block.shape.heads, block.shape.slices, block.shape.head_dim + 1},
                              block.weights.norm1.weight.options());
        for (const auto& tile : tiles_) {
            auto here = project(l, rows(x_, tile), tile, false);
            sums[tile.sample].add_(layers_[l].feature_sums(here)[0]);
        }
        slices.emplace_back(sums, points_.scalar_type(), block.epsilon, block.attend, block.attend_weights,
                            rows_of_points, record);
        states_.push_back(slices.back().states());
        if (l + 1 < num_layers()) advance_layer(l);
    }
    return slices;
}

at::Tensor DeviceStreamPasses::result()
{
    const at::NoGradGuard no_grad;
    const auto no_autocast = without_autocast();
    const auto top = num_layers() - 1;
    if (!x_.defined()) {
        start_first_layer();
        for (std::int64_t l = 0; l < top; ++l) advance_layer(l);
    }
    const auto result =
        at::empty({points_.size(0), points_.size(1), model_.blocks[top].shape.out_channels()}, points_.options());
    for (const auto& tile : tiles_) rows(result, tile).copy_(output(top, rows(x_, tile), tile));
    return result;
}

/// Converts the gradient of a layer's output to that of its input, in two passes over the tiles, between which the
/// gradients of all tiles' slices are added.
void DeviceStreamPasses::backward_of_layer(std::int64_t layer, const SliceStates& slices,
                                           const at::Tensor& result_gradient, std::vector<at::Tensor>& of_attention)
{
    auto& here = layers_[layer];
    const auto& states = states_[layer];
    const bool is_top = layer + 1 == num_layers();
    auto state_sums = at::zeros_like(states);
    std::vector<at::Tensor> tile_sums;
    std::vector<LayerPoints> kept;  // all state of a single tile; of several tiles only what is small
    for (const auto& tile : tiles_) {
        const auto x = rows(x_, tile), gradient = rows(gradient_, tile);
        x.copy_(input(layer, tile));
        auto points = project(layer, x, tile, true);
        here.second_half(points, x, states, /*record=*/true, /*finish=*/false);
        const auto second = here.second_backward(points, is_top ? rows(result_gradient, tile) : gradient);
        tile_sums.push_back(here.sums_of(points, second.mixed));
        state_sums[tile.sample].add_(tile_sums.back()[0].narrow(2, 0, model_.blocks[layer].shape.head_dim));
        gradient.copy_(second.x);
        if (tiles_.size() > 1) {
            LayerPoints small;
            small.log_sums = std::move(points.log_sums);
            points = std::move(small);
        }
        kept.push_back(std::move(points));
    }
    auto of_slices = slices.backward(state_sums);
    round_totals(type_, states, slices.sums(), of_slices.states, of_slices.sums);
    of_attention = std::move(of_slices.weights);

    for (std::size_t i = 0; i < tiles_.size(); ++i) {
        const auto& tile = tiles_[i];
        const auto gradient = rows(gradient_, tile);
        if (tiles_.size() > 1) {
            auto again = project(layer, rows(x_, tile), tile, true);
            again.log_sums = std::move(kept[i].log_sums);
            kept[i] = std::move(again);
        }
        gradient.copy_(
            here.first_backward(kept[i], states, of_slices.sums, tile_sums[i], here.second_gradients(gradient)));
        kept[i] = LayerPoints();
    }
}

StreamGradients DeviceStreamPasses::backward(const std::vector<SliceStates>& slices, const at::Tensor& result_gradient,
                                             bool wants_points)
{
    const at::NoGradGuard no_grad;
    const auto no_autocast = without_autocast();
    StreamGradients found;
    found.attend_weights.resize(num_layers());
    for (const auto& layer : slices) states_.push_back(layer.states());

    const auto top = num_layers() - 1;
    start_first_layer();
    for (std::int64_t l = 1; l <= top / kStreamLayersApart * kStreamLayersApart; ++l) {
        advance_layer(l - 1);
        if (l % kStreamLayersApart == 0) inputs_.push_back(x_.clone());
    }
    const auto of_result = result_gradient.contiguous();
    gradient_ = at::empty_like(x_);
    for (auto l = top; l >= 0; --l) {
        backward_of_layer(l, slices[l], of_result, found.attend_weights[l]);
        inputs_.resize(
            std::min(inputs_.size(), static_cast<std::size_t>(std::max<std::int64_t>(l - 1, 0) / kStreamLayersApart)));
    }

    if (wants_points) found.points = at::empty_like(points_);
    for (const auto& weight : mlp_) found.mlp.push_back(at::zeros_like(weight));
    if (offset_.defined()) found.offset = at::zeros_like(offset_);
    for (const auto& tile : tiles_) {
        const at::AutoGradMode recording(true);
        const auto x = as_leaf(rows(points_, tile), wants_points);
        const auto result = begin(x, tile);
        std::vector<at::Tensor> inputs = mlp_;
        if (offset_.defined()) inputs.push_back(offset_);
        if (wants_points) inputs.push_back(x);
        const auto gradients = gradients_of({result}, inputs, {rows(gradient_, tile).to(result.scalar_type())});
        const at::NoGradGuard adding;
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
