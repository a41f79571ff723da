// SPDX-License-Identifier: Apache-2.0
#include "ops/fused/device_block.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <span>

namespace meshard {
namespace {

constexpr double kNormEpsilon = 1e-5;   // of torch::nn::LayerNorm

at::Tensor leaf(const at::Tensor& values, bool record) { return values.detach().set_requires_grad(record); }

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& results, const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& gradients)
{
    return torch::autograd::grad(results, inputs, gradients, /*retain_graph=*/true, /*create_graph=*/false, /*allow_unused=*/true);
}

/// The weights of the halves of a block; those of the slices lie between them.
constexpr std::size_t kFirstHalf = kSlice, kSecondHalf = kOut;

}  // namespace

DeviceBlockPasses::DeviceBlockPasses(BlockCall& call, const at::Tensor& x, const std::vector<at::Tensor>& weights) : call_(call), x_(x.contiguous())
{
    if (call_.leaves.empty()) {
        for (const auto& weight : weights) call_.leaves.push_back(leaf(weight, true));
    }
    weights_ = call_.leaves;
}

at::Tensor DeviceBlockPasses::rows(const at::Tensor& points, const Tile& tile) const { return points.flatten(0, 1).narrow(0, tile.first, tile.count); }

RecordedTile DeviceBlockPasses::projected(const Tile& tile, bool record) const
{
    const at::AutoGradMode recording(record);
    RecordedTile found;
    found.x = leaf(rows(x_, tile), record);
    const auto normal = at::layer_norm(found.x, {found.x.size(1)}, weights_[kNorm1Scale], weights_[kNorm1Shift], kNormEpsilon);
    found.x_mid = at::linear(normal, weights_[kProjectX], weights_[kProjectXBias]);
    found.features = at::linear(normal, weights_[kProjectFx], weights_[kProjectFxBias]);
    return found;
}

SlicePoints DeviceBlockPasses::sliced(const RecordedTile& tile) const
{
    return {tile.x_mid.detach(), weights_[kSlice].detach(), weights_[kSliceBias].detach()};
}

void DeviceBlockPasses::bring_back(RecordedTile& tile, const at::Tensor& states, bool record) const
{
    const auto mixed = sliced(tile).deslice(states);
    const at::AutoGradMode recording(record);
    if (!tile.x.requires_grad()) tile.x = leaf(tile.x, record);
    tile.mixed = leaf(mixed, record);
    const auto norm = [&](const at::Tensor& x, BlockWeight scale) { return at::layer_norm(x, {x.size(1)}, weights_[scale], weights_[scale + 1], kNormEpsilon); };
    const auto linear = [&](const at::Tensor& x, BlockWeight weight) { return at::linear(x, weights_[weight], weights_[weight + 1]); };
    const auto activated = [&](const at::Tensor& x) {
        const auto* function = call_.block.shape.activation;
        return function ? function->value(x, weights_.size() > kActivation ? weights_[kActivation] : at::Tensor()) : at::gelu(x);
    };
    const auto residual = tile.x + linear(tile.mixed, kOut);
    tile.result = residual + linear(activated(linear(norm(residual, kNorm2Scale), kHidden)), kMlpOut);
    if (call_.block.shape.outputs > 0) tile.result = linear(norm(tile.result, kNorm3Scale), kHead);
}

at::Tensor DeviceBlockPasses::no_sums(std::int64_t width) const
{
    const auto& shape = call_.block.shape;
    return at::zeros({x_.size(0), shape.heads, shape.slices, width}, x_.options().dtype(at::kDouble));
}

at::Tensor DeviceBlockPasses::forward(const std::vector<at::Tensor>& attend_weights)
{
    const bool keep = call_.options.keep_activations, record = keep && call_.recorded;
    auto sums = no_sums(call_.block.shape.head_dim + 1);
    std::vector<RecordedTile> kept;
    for (const auto& tile : call_.tiles) {
        auto points = projected(tile, record);
        sums[tile.sample].add_(sliced(points).sums(points.features.detach()));
        if (!record) points.features.reset();
        if (keep) kept.push_back(std::move(points));
    }
    call_.slices = std::make_unique<SliceStates>(sums, x_.scalar_type(), call_.block.epsilon, call_.block.attend, attend_weights, call_.rows, call_.recorded);

    auto result = at::empty({x_.size(0), x_.size(1), call_.block.shape.out_channels()}, x_.options());
    for (std::size_t i = 0; i < call_.tiles.size(); ++i) {
        const auto& tile = call_.tiles[i];
        auto points = keep ? kept[i] : projected(tile, false);
        bring_back(points, call_.slices->states()[tile.sample], record);
        rows(result, tile).copy_(points.result.detach());
        if (record) call_.recorded_tiles.push_back(std::move(points));
        else if (keep) kept[i] = RecordedTile();
    }
    return result;
}

void DeviceBlockPasses::add_gradients(const std::vector<at::Tensor>& found, std::size_t first_weight)
{
    for (std::size_t i = 0; i < found.size(); ++i) {
        if (found[i].defined()) gradients_[first_weight + i].add_(found[i]);   // else a weight that the block does not have
    }
}

BlockPassGradients DeviceBlockPasses::backward(const at::Tensor& result_gradient)
{
    const auto& shape = call_.block.shape;
    const auto& states = call_.slices->states();
    for (const auto& weight : weights_) gradients_.push_back(at::zeros_like(weight));
    auto x_gradient = at::empty_like(x_), mixed_gradient = at::empty({x_.size(0), x_.size(1), shape.inner()}, x_.options());
    const auto inputs_and = [](std::vector<at::Tensor> inputs, std::span<const at::Tensor> weights) {
        inputs.insert(inputs.end(), weights.begin(), weights.end());
        return inputs;
    };
    const auto recorded = [&](std::size_t i) { return i < call_.recorded_tiles.size() ? call_.recorded_tiles[i] : RecordedTile(); };

    auto state_sums = no_sums(shape.head_dim);
    for (std::size_t i = 0; i < call_.tiles.size(); ++i) {
        const auto& tile = call_.tiles[i];
        auto points = recorded(i);
        if (!points.result.defined()) {
            points = projected(tile, false);
            bring_back(points, states[tile.sample], true);
        }
        const std::span<const at::Tensor> used(weights_.begin() + kSecondHalf, weights_.end());
        auto found = gradients_of({points.result}, inputs_and({points.x, points.mixed}, used), {rows(result_gradient, tile)});
        rows(x_gradient, tile).copy_(found[0]);
        rows(mixed_gradient, tile).copy_(found[1]);
        state_sums[tile.sample].add_(sliced(points).sums(found[1]).narrow(2, 0, shape.head_dim));
        add_gradients({found.begin() + 2, found.end()}, kSecondHalf);
    }
    auto of_slices = call_.slices->backward(state_sums);

    for (std::size_t i = 0; i < call_.tiles.size(); ++i) {
        const auto& tile = call_.tiles[i];
        auto points = recorded(i);
        if (!points.features.defined()) points = projected(tile, true);
        const auto in_slices = sliced(points).backward(points.features.detach(), states[tile.sample], of_slices.sums[tile.sample], rows(mixed_gradient, tile));
        add_gradients({in_slices.slices, in_slices.bias}, kSlice);
        const std::span<const at::Tensor> used(weights_.begin(), weights_.begin() + kFirstHalf);
        auto found = gradients_of({points.x_mid, points.features}, inputs_and({points.x}, used), {in_slices.x, in_slices.features});
        rows(x_gradient, tile).add_(found[0]);
        add_gradients({found.begin() + 1, found.end()}, 0);
    }
    return {x_gradient, gradients_, std::move(of_slices.weights)};
}

}  // namespace meshard
