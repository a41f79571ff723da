// SPDX-License-Identifier: Apache-2.0
#include "ops/fused/device_block.h"

#include "ops/fused/tile_tensors.h"
#include "ops/slices/slice_attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace meshard {
namespace {

constexpr double kNormEpsilon = 1e-5;  // of torch::nn::LayerNorm

at::Tensor leaf(const at::Tensor& values, bool record)
{
    return values.detach().set_requires_grad(record);
}

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& results, const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& gradients)
{
    return torch::autograd::grad(results, inputs, gradients, /*retain_graph=*/true, /*create_graph=*/false, /*allow_unused=*/true);
}

/// The weights of the two halves of a block, or their gradients, without those of the slices.
std::vector<at::Tensor> first_half(const BlockWeights<at::Tensor>& w)
{
    return {w.norm1.weight, w.norm1.bias, w.project_x.weight, w.project_x.bias, w.project_fx.weight, w.project_fx.bias};
}

std::vector<at::Tensor> second_half(const BlockWeights<at::Tensor>& w)
{
    std::vector<at::Tensor> all{w.out.weight,   w.out.bias,     w.norm2.weight, w.norm2.bias,  w.hidden.weight, w.hidden.bias, w.mlp_out.weight,
                                w.mlp_out.bias, w.norm3.weight, w.norm3.bias,   w.head.weight, w.head.bias,     w.activation};
    std::erase_if(all, [](const at::Tensor& weight) { return !weight.defined(); });
    return all;
}

std::vector<at::Tensor> joined(std::vector<at::Tensor> first, const std::vector<at::Tensor>& second)
{
    first.insert(first.end(), second.begin(), second.end());
    return first;
}

/// Adds the defined tensors of `found`, from `begin` on; one is undefined if its weight does not affect the result.
void add_to(const std::vector<at::Tensor>& gradients, const std::vector<at::Tensor>& found, std::size_t begin)
{
    for (std::size_t i = 0; i < gradients.size(); ++i) {
        if (found[begin + i].defined()) gradients[i].add_(found[begin + i]);
    }
}

at::Tensor linear(const at::Tensor& x, const Affine<at::Tensor>& layer)
{
    return at::linear(x, layer.weight, layer.bias);
}

}  // namespace

DeviceBlockPasses::DeviceBlockPasses(BlockCall& call, const at::Tensor& x, const BlockWeights<at::Tensor>& weights) : call_(call), x_(x.contiguous())
{
    if (!call_.leaves.norm1.weight.defined()) {
        call_.leaves = weights.map([](const at::Tensor& weight) { return weight.defined() ? leaf(weight, true) : weight; });
    }
    weights_ = call_.leaves;
    const at::AutoGradMode recording(true);
    used_ = weights_.map([&](const at::Tensor& weight) { return weight.defined() ? weight.to(x_.scalar_type()) : weight; });
}

/// In the type of the points.
at::Tensor DeviceBlockPasses::normal(const at::Tensor& x, const Affine<at::Tensor>& norm) const
{
    return at::layer_norm(x.to(norm.weight.scalar_type()), {x.size(1)}, norm.weight, norm.bias, kNormEpsilon).to(x_.scalar_type());
}

at::Tensor DeviceBlockPasses::rows(const at::Tensor& points, const Tile& tile) const
{
    return points.flatten(0, 1).narrow(0, tile.first, tile.count);
}

RecordedTile DeviceBlockPasses::projected(const Tile& tile, bool record) const
{
    const at::AutoGradMode recording(record);
    RecordedTile found;
    found.x = leaf(rows(x_, tile), record);
    const auto input = normal(found.x, weights_.norm1);
    found.x_mid = linear(input, used_.project_x);
    found.features = linear(input, used_.project_fx);
    return found;
}

/// `work(slices)` with the tile's points in slices.
template <class Work>
auto DeviceBlockPasses::with_slices(const RecordedTile& tile, const Work& work) const
{
    const auto x = tile.x_mid.detach(), slices = weights_.slices.weight.detach(), bias = weights_.slices.bias.detach();
    return x.scalar_type() == slices.scalar_type() ? work(SlicePoints(x, slices, bias)) : work(AttendedSlices(x, slices, bias));
}

void DeviceBlockPasses::bring_back(RecordedTile& tile, const at::Tensor& states, bool record) const
{
    const auto mixed = with_slices(tile, [&](const auto& slices) { return slices.deslice(states); });
    const at::AutoGradMode recording(record);
    if (!tile.x.requires_grad()) tile.x = leaf(tile.x, record);
    tile.mixed = leaf(mixed, record);
    const auto* activation = call_.block.shape.activation;
    const auto residual = tile.x.to(weights_.norm2.weight.scalar_type()) + linear(tile.mixed, used_.out);
    const auto hidden = linear(normal(residual, weights_.norm2), used_.hidden);
    tile.result = residual + linear(activation ? activation->value(hidden, used_.activation) : at::gelu(hidden), used_.mlp_out);
    if (call_.block.shape.outputs > 0) tile.result = linear(normal(tile.result, weights_.norm3), used_.head);
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
        auto points = projected(tile, record);
        sums[tile.sample].add_(with_slices(points, [&](const auto& slices) { return slices.sums(points.features.detach()); }));
        if (!record) points.features.reset();
        if (keep) kept.push_back(std::move(points));
    }
    const auto type = weights_.norm1.weight.scalar_type();
    call_.slices = std::make_unique<SliceStates>(sums, type, call_.block.epsilon, call_.block.attend, attend_weights, call_.rows, call_.recorded);

    const auto& shape = call_.block.shape;
    auto result = at::empty({x_.size(0), x_.size(1), shape.out_channels()}, shape.outputs > 0 ? x_.options().dtype(type) : x_.options());
    for (std::size_t i = 0; i < call_.tiles.size(); ++i) {
        const auto& tile = call_.tiles[i];
        auto points = keep ? kept[i] : projected(tile, false);
        bring_back(points, call_.slices->states()[tile.sample], record);
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
    const auto gradients = weights_.map([](const at::Tensor& weight) { return weight.defined() ? at::zeros_like(weight) : weight; });
    const auto first = first_half(weights_), second = second_half(weights_), first_gradients = first_half(gradients), second_gradients = second_half(gradients);
    auto x_gradient = at::empty_like(x_), mixed_gradient = at::empty({x_.size(0), x_.size(1), shape.inner()}, x_.options());
    const auto recorded = [&](std::size_t i) { return i < call_.recorded_tiles.size() ? call_.recorded_tiles[i] : RecordedTile(); };

    auto state_sums = no_sums(shape.head_dim);
    for (std::size_t i = 0; i < call_.tiles.size(); ++i) {
        const auto& tile = call_.tiles[i];
        auto points = recorded(i);
        if (!points.result.defined()) {
            points = projected(tile, false);
            bring_back(points, states[tile.sample], true);
        }
        const auto found =
            gradients_of({points.result}, joined({points.x, points.mixed}, second), {rows(result_gradient, tile).to(points.result.scalar_type())});
        rows(x_gradient, tile).copy_(found[0]);
        rows(mixed_gradient, tile).copy_(found[1]);
        state_sums[tile.sample].add_(with_slices(points, [&](const auto& slices) { return slices.sums(found[1]); }).narrow(2, 0, shape.head_dim));
        add_to(second_gradients, found, 2);
    }
    auto of_slices = call_.slices->backward(state_sums);

    for (std::size_t i = 0; i < call_.tiles.size(); ++i) {
        const auto& tile = call_.tiles[i];
        auto points = recorded(i);
        if (!points.features.defined()) points = projected(tile, true);
        const auto in_slices = with_slices(points, [&](const auto& slices) {
            return slices.backward(points.features.detach(), states[tile.sample], of_slices.sums[tile.sample], rows(mixed_gradient, tile));
        });
        add_to({gradients.slices.weight, gradients.slices.bias}, {in_slices.slices, in_slices.bias}, 0);
        const auto found = gradients_of({points.x_mid, points.features}, joined({points.x}, first), {in_slices.x, in_slices.features});
        rows(x_gradient, tile).add_(found[0]);
        add_to(first_gradients, found, 1);
    }
    return {x_gradient, list_of(gradients), std::move(of_slices.weights)};
}

}  // namespace meshard
