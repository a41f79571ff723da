// SPDX-License-Identifier: Apache-2.0
#include "ops/fused/device_tile.h"

#include "ops/slices/slice_attention.h"
#include "ops/slices/slice_kernels.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace meshard {
namespace {

constexpr double kNormEpsilon = 1e-5;  // of torch::nn::LayerNorm

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

at::Tensor as_leaf(const at::Tensor& values, bool record)
{
    return values.detach().set_requires_grad(record);
}

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& results, const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& gradients)
{
    return torch::autograd::grad(results, inputs, gradients, /*retain_graph=*/true, /*create_graph=*/false, /*allow_unused=*/true);
}

BlockWeights<at::Tensor> leaves_of(const BlockWeights<at::Tensor>& weights)
{
    return weights.map([](const at::Tensor& weight) { return weight.defined() ? as_leaf(weight, true) : weight; });
}

BlockWeights<at::Tensor> zeros_like(const BlockWeights<at::Tensor>& weights)
{
    return weights.map([](const at::Tensor& weight) { return weight.defined() ? at::zeros_like(weight) : weight; });
}

DeviceTile::DeviceTile(const BlockShape& shape, const BlockWeights<at::Tensor>& leaves, at::ScalarType type) : shape_(shape), type_(type), weights_(leaves)
{
    const at::AutoGradMode recording(true);
    used_ = weights_.map([&](const at::Tensor& weight) { return weight.defined() ? weight.to(type_) : weight; });
}

/// In the type of the points.
at::Tensor DeviceTile::normal(const at::Tensor& x, const Affine<at::Tensor>& norm) const
{
    return at::layer_norm(x.to(norm.weight.scalar_type()), {x.size(1)}, norm.weight, norm.bias, kNormEpsilon).to(type_);
}

RecordedTile DeviceTile::projected(const at::Tensor& x, bool record, bool with_features) const
{
    const at::AutoGradMode recording(record);
    RecordedTile found;
    found.x = as_leaf(x, record);
    const auto input = normal(found.x, weights_.norm1);
    found.x_mid = linear(input, used_.project_x);
    if (with_features) found.features = linear(input, used_.project_fx);
    return found;
}

/// `work(slices)` with the tile's points in slices.
template <class Work>
auto DeviceTile::with_slices(const RecordedTile& tile, const Work& work) const
{
    const auto x = tile.x_mid.detach(), slices = weights_.slices.weight.detach(), bias = weights_.slices.bias.detach();
    return x.scalar_type() == slices.scalar_type() ? work(SlicePoints(x, slices, bias)) : work(AttendedSlices(x, slices, bias));
}

at::Tensor DeviceTile::slice_sums(const RecordedTile& tile, const at::Tensor& values) const
{
    return with_slices(tile, [&](const auto& slices) { return slices.sums(values.detach()); });
}

void DeviceTile::bring_back(RecordedTile& tile, const at::Tensor& states, bool record) const
{
    const auto mixed = with_slices(tile, [&](const auto& slices) { return slices.deslice(states); });
    const at::AutoGradMode recording(record);
    if (!tile.x.requires_grad()) tile.x = as_leaf(tile.x, record);
    tile.mixed = as_leaf(mixed, record);
    const auto* activation = shape_.activation;
    const auto residual = tile.x.to(weights_.norm2.weight.scalar_type()) + linear(tile.mixed, used_.out);
    const auto hidden = linear(normal(residual, weights_.norm2), used_.hidden);
    tile.result = residual + linear(activation ? activation->value(hidden, used_.activation) : at::gelu(hidden), used_.mlp_out);
    if (shape_.outputs > 0) tile.result = linear(normal(tile.result, weights_.norm3), used_.head);
}

DeviceTile::Second DeviceTile::second_backward(const RecordedTile& tile, const at::Tensor& result_gradient, const BlockWeights<at::Tensor>* weights) const
{
    const auto second = weights ? second_half(weights_) : std::vector<at::Tensor>();
    const auto found = gradients_of({tile.result}, joined({tile.x, tile.mixed}, second), {result_gradient.to(tile.result.scalar_type())});
    if (weights) add_to(second_half(*weights), found, 2);
    return {found[0], found[1]};
}

at::Tensor DeviceTile::first_backward(const RecordedTile& tile, const at::Tensor& states, const at::Tensor& sums_gradient, const at::Tensor& mixed_gradient,
                                      const BlockWeights<at::Tensor>* weights) const
{
    const auto in_slices =
        with_slices(tile, [&](const auto& slices) { return slices.backward(tile.features.detach(), states, sums_gradient, mixed_gradient); });
    const auto first = weights ? first_half(weights_) : std::vector<at::Tensor>();
    const auto found = gradients_of({tile.x_mid, tile.features}, joined({tile.x}, first), {in_slices.x, in_slices.features});
    if (weights) {
        add_to({weights->slices.weight, weights->slices.bias}, {in_slices.slices, in_slices.bias}, 0);
        add_to(first_half(*weights), found, 1);
    }
    return found[0];
}

}  // namespace meshard
