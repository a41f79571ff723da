// SPDX-License-Identifier: Apache-2.0
#include "ops/fused/device_layer.h"

#include "ops/fused/device_rows.h"
#include "ops/slices/slice_kernels.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace meshard {
namespace {

// Heads, and the head's outputs, are padded to this number of channels: rows of 16 bytes in half precision.
constexpr std::int64_t kHeadChannels = 8;

std::int64_t rounded_up(std::int64_t size)
{
    return (size + kHeadChannels - 1) / kHeadChannels * kHeadChannels;
}

at::Tensor rows_of_range(const at::Tensor& rows, const Tile& range)
{
    return rows.narrow(0, range.first, range.count);
}

/// Pads the channels of each head in rows (H D, ...) to `width`, and the inverse.
at::Tensor with_width(const at::Tensor& rows, std::int64_t heads, std::int64_t width)
{
    const auto dim = rows.size(0) / heads;
    if (dim == width) return rows;
    if (dim > width) return rows.unflatten(0, {heads, dim}).narrow(1, 0, width).flatten(0, 1);
    const auto parts = rows.unflatten(0, {heads, dim});
    return at::cat(
               {parts, parts.new_zeros(parts.dim() == 2 ? at::IntArrayRef({heads, width - dim}).vec()
                                                        : at::IntArrayRef({heads, width - dim, parts.size(2)}).vec())},
               1)
        .flatten(0, 1);
}

}  // namespace

at::Tensor as_leaf(const at::Tensor& values, bool record)
{
    return values.detach().set_requires_grad(record);
}

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& results, const std::vector<at::Tensor>& inputs,
                                     const std::vector<at::Tensor>& gradients)
{
    return torch::autograd::grad(results, inputs, gradients, /*retain_graph=*/true, /*create_graph=*/false,
                                 /*allow_unused=*/true);
}

std::vector<at::Tensor*> LayerPoints::tensors()
{
    std::vector<at::Tensor*> all{
        &input.x_hat,    &input.scales,    &projected, &noise,  &temperature_input, &inverse_temperature, &mixed,
        &residual.x_hat, &residual.scales, &hidden,    &active, &parameter,         &last.x_hat,          &last.scales};
    for (auto* list : {&temperature, &scale_rows_by_temperature, &log_sums})
        for (auto& tensor : *list) all.push_back(&tensor);
    return all;
}

DeviceLayer::DeviceLayer(const BlockShape& shape, const BlockWeights<at::Tensor>& weights, at::ScalarType type)
    : shape_(shape), type_(type), width_(rounded_up(shape.head_dim)),
      weights_(weights.map([](const at::Tensor& w) { return w.defined() ? w.contiguous() : w; }))
{
    const auto H = shape.heads, inner = H * width_;
    const auto& w = weights_;
    const auto options = w.norm1.weight.options().dtype(type);
    std::vector<FoldedLinear> products;
    const auto fold = [&](const Affine<at::Tensor>& product, const Affine<at::Tensor>& norm,
                          const Affine<at::Tensor>& folded) { products.push_back({product, norm, folded}); };
    const auto converted = [&](const at::Tensor& weight) {
        if (weight.scalar_type() == type) return weight;
        fold({weight, {}}, {}, {at::empty_like(weight, options), {}});
        return products.back().folded.weight;
    };
    for (const auto* part : {&w.project_x, &w.project_fx})
        if (part->weight.defined())
            projections_.push_back({with_width(part->weight, H, width_), with_width(part->bias, H, width_)});
    const auto parts = std::ssize(projections_);
    in_ = {at::empty({parts * inner, shape.channels}, options), at::empty({parts * inner}, options)};
    for (std::int64_t i = 0; i < parts; ++i)
        fold(projections_[i], w.norm1, {in_.weight.narrow(0, i * inner, inner), in_.bias.narrow(0, i * inner, inner)});
    hidden_ = {at::empty_like(w.hidden.weight, options), at::empty_like(w.hidden.bias, options)};
    fold(w.hidden, w.norm2, hidden_);
    out_ = width_ == shape.head_dim ? converted(w.out.weight).t() : with_width(w.out.weight.t(), H, width_).to(type);
    mlp_out_ = converted(w.mlp_out.weight);
    slices_ = padded(w.slices.weight);
    if (shape.outputs > 0) {
        const auto rows = rounded_up(shape.outputs);
        head_ = {at::zeros({rows, shape.channels}, options), at::zeros({rows}, options)};
        fold(w.head, w.norm3, head_);
    }
    fold_weights(products);
}

/// Pads (..., D) to the padded width.
at::Tensor DeviceLayer::padded(const at::Tensor& of_slices) const
{
    return width_ == shape_.head_dim ? of_slices.contiguous()
                                     : at::constant_pad_nd(of_slices, {0, width_ - shape_.head_dim});
}

/// Pads (..., D + 1) to the padded width before the last number, and the inverse.
at::Tensor DeviceLayer::padded_sums(const at::Tensor& sums) const
{
    if (width_ == shape_.head_dim) return sums.contiguous();
    return at::cat({padded(sums.narrow(-1, 0, shape_.head_dim)), sums.narrow(-1, shape_.head_dim, 1)}, -1);
}

at::Tensor DeviceLayer::without_padding(const at::Tensor& sums) const
{
    if (width_ == shape_.head_dim) return sums;
    return at::cat({sums.narrow(-1, 0, shape_.head_dim), sums.narrow(-1, width_, 1)}, -1);
}

LayerPoints DeviceLayer::project(const at::Tensor& x, std::vector<Tile> ranges, const at::Tensor& noise,
                                 bool record) const
{
    LayerPoints points;
    points.ranges = std::move(ranges);
    points.log_sums.resize(points.ranges.size());
    points.noise = noise;
    points.input = normal_rows(for_kernels(x));
    points.projected = at::addmm(in_.bias, points.input.x_hat, in_.weight.t());
    if (!record) points.input = {};
    if (shape_.point_temperature) compute_temperatures(points, record);
    return points;
}

/// Computes the points' temperatures t = max(temperature + gelu(out(gelu(hidden(h)))), 0.01) of a head's projected
/// channels h (Luo et al. 2025, Transolver++, section 3.2) by LibTorch's operators, and records their graph.
void DeviceLayer::compute_temperatures(LayerPoints& points, bool record) const
{
    const at::AutoGradMode recording(record);
    const auto n = points.projected.size(0), H = shape_.heads;
    points.temperature_input =
        as_leaf(points.projected.unflatten(1, {H, width_}).narrow(2, 0, shape_.head_dim).flatten(0, 1), record);
    points.temperature.clear();
    for (const auto* weight :
         {&weights_.temperature, &weights_.temperature_hidden.weight, &weights_.temperature_hidden.bias,
          &weights_.temperature_out.weight, &weights_.temperature_out.bias})
        points.temperature.push_back(as_leaf(*weight, record));
    const auto& w = points.temperature;
    const auto hidden = at::gelu(at::linear(points.temperature_input, w[1].to(type_), w[2].to(type_)));
    const auto added = at::gelu(at::linear(hidden, w[3].to(type_), w[4].to(type_))).view({n, H}).to(w[0].scalar_type());
    points.inverse_temperature = (added + w[0]).clamp_min(kMinPointTemperature).reciprocal();
    for (const auto& range : points.ranges)
        points.scale_rows_by_temperature.push_back(
            at::constant_pad_nd(rows_of_range(points.inverse_temperature.detach(), range).t(),
                                {0, padded_points(range.count) - range.count})
                .contiguous());
    if (record) return;
    points.temperature_input.reset();
    points.inverse_temperature.reset();
    points.temperature.clear();
}

SlicePoints DeviceLayer::slices_of(const LayerPoints& points, std::size_t i) const
{
    const auto& range = points.ranges[i];
    const auto x = rows_of_range(points.projected, range).narrow(1, 0, shape_.heads * width_);
    return {x,
            slices_,
            weights_.slices.bias,
            points.scale_rows_by_temperature.empty() ? at::Tensor() : points.scale_rows_by_temperature[i],
            points.noise.defined() ? rows_of_range(points.noise, range) : at::Tensor(),
            points.log_sums[i]};
}

at::Tensor DeviceLayer::features_of(const LayerPoints& points) const
{
    const auto inner = shape_.heads * width_;
    return points.projected.narrow(1, shape_.point_temperature ? 0 : inner, inner);
}

at::Tensor DeviceLayer::feature_sums(LayerPoints& points) const
{
    return sums_of(points, features_of(points));
}

at::Tensor DeviceLayer::sums_of(LayerPoints& points, const at::Tensor& values) const
{
    std::vector<at::Tensor> sums;
    for (std::size_t i = 0; i < points.ranges.size(); ++i) {
        auto slices = slices_of(points, i);
        sums.push_back(without_padding(slices.sums(rows_of_range(values, points.ranges[i]))));
        points.log_sums[i] = slices.log_sums();
    }
    if (sums.empty()) return at::zeros({0, shape_.heads, shape_.slices, shape_.head_dim + 1}, slices_.options());
    return sums.size() == 1 ? sums[0].unsqueeze(0) : at::stack(sums);
}

/// The MLP's hidden row after its activation. With `record`, an activation other than gelu becomes the end of a graph.
at::Tensor DeviceLayer::activated(LayerPoints& points, bool record) const
{
    if (!shape_.activation) return gelu_of(points.hidden, /*in_place=*/!record);
    const at::AutoGradMode recording(record);
    points.hidden = as_leaf(points.hidden, record);
    if (weights_.activation.defined()) points.parameter = as_leaf(weights_.activation, record);
    return shape_.activation->value(points.hidden,
                                    points.parameter.defined() ? points.parameter.to(type_) : points.parameter);
}

at::Tensor DeviceLayer::second_half(LayerPoints& points, const at::Tensor& x, const at::Tensor& states, bool record,
                                    bool finish) const
{
    auto mixed = at::empty({points.projected.size(0), shape_.heads * width_}, points.projected.options());
    for (std::size_t i = 0; i < points.ranges.size(); ++i) {
        auto slices = slices_of(points, i);
        auto to = rows_of_range(mixed, points.ranges[i]);
        slices.deslice(padded(states[points.ranges[i].sample]), to);
        points.log_sums[i] = slices.log_sums();
    }
    if (!record) points.projected.reset();
    at::Tensor stream;
    points.residual =
        normal_rows(for_kernels(x), at::mm(mixed, out_), weights_.out.bias, weights_.mlp_out.bias, &stream);
    points.mixed = record ? mixed : at::Tensor();
    points.hidden = at::addmm(hidden_.bias, points.residual.x_hat, hidden_.weight.t());
    if (!record) points.residual = {};
    if (!finish && shape_.outputs == 0) return {};

    auto active = activated(points, record);
    stream.addmm_(active.detach(), mlp_out_.t());
    points.active = record ? active : at::Tensor();
    if (!record) points.hidden.reset();
    if (shape_.outputs == 0) return stream;
    const auto last = normal_rows(stream);
    if (record) points.last = last;
    if (!finish) return {};
    const auto result = at::addmm(head_.bias, last.x_hat, head_.weight.t()).narrow(1, 0, shape_.outputs);
    return result.to(weights_.norm1.weight.scalar_type()).contiguous();
}

void DeviceLayer::add(at::Tensor& to, const at::Tensor& gradient) const
{
    if (!gradient.defined()) return;
    if (to.defined())
        to.add_(gradient);
    else
        to = gradient;
}

void DeviceLayer::add_product(at::Tensor& to, const at::Tensor& left, const at::Tensor& right) const
{
    add(to, sums_of_products(left, right));
}

DeviceLayer::Second DeviceLayer::second_backward(LayerPoints& points, const at::Tensor& result_gradient)
{
    at::Tensor stream;
    if (shape_.outputs > 0) {
        const auto g = for_kernels(
            at::constant_pad_nd(result_gradient.to(type_), {0, rounded_up(shape_.outputs) - shape_.outputs}));
        add_product(found_.head.weight, g, points.last.x_hat);
        add(found_.head.bias, sums_of_rows(g));
        stream = normal_rows_backward(at::mm(g, head_.weight), points.last, {});
    } else {
        stream = for_kernels(result_gradient.to(type_));
    }
    auto of_hidden = at::mm(stream, mlp_out_);
    at::Tensor active, hidden_sums;
    if (shape_.activation) {
        if (!points.active.defined()) points.active = activated(points, true);
        active = points.active.detach();
        std::vector<at::Tensor> inputs{points.hidden};
        if (points.parameter.defined()) inputs.push_back(points.parameter);
        const auto found = gradients_of({points.active}, inputs, {of_hidden});
        of_hidden = found[0].contiguous();
        if (points.parameter.defined()) add(found_.activation, found[1]);
        hidden_sums = sums_of_rows(of_hidden);
    } else {
        active = points.active;
        hidden_sums = gelu_backward_in_place(points.hidden, of_hidden, active.defined() ? nullptr : &active);
    }
    add_product(found_.mlp_out.weight, stream, active);
    add_product(found_.hidden.weight, of_hidden, points.residual.x_hat);
    add(found_.hidden.bias, hidden_sums);
    active.reset();
    points.active.reset();
    points.hidden.reset();
    at::Tensor mlp_out_sums, out_sums;
    const auto x =
        normal_rows_backward(at::mm(of_hidden, hidden_.weight), points.residual, stream, &mlp_out_sums, &out_sums);
    add(found_.mlp_out.bias, mlp_out_sums);
    add(found_.out.bias, out_sums);
    add_product(found_.out.weight, x, points.mixed);
    return second_gradients(x);
}

DeviceLayer::Second DeviceLayer::second_gradients(const at::Tensor& x) const
{
    return {x, at::mm(x, out_.t())};
}

at::Tensor DeviceLayer::first_backward(LayerPoints& points, const at::Tensor& states, const at::Tensor& sums_gradient,
                                       const at::Tensor& state_sums, const Second& second)
{
    const auto inner = shape_.heads * width_;
    auto of_projected = at::empty_like(points.projected);
    auto of_x = of_projected.narrow(1, 0, inner);
    auto of_features = shape_.point_temperature ? at::empty_like(of_projected) : of_projected.narrow(1, inner, inner);
    const auto features = features_of(points);
    std::vector<at::Tensor> of_inverse_temperature;
    if (points.ranges.empty()) {  // this rank has no samples
        add(found_.slices.weight, at::zeros_like(weights_.slices.weight));
        add(found_.slices.bias, at::zeros_like(weights_.slices.bias));
        add(found_.in.bias, at::zeros(in_.bias.sizes(), slices_.options()));
        of_inverse_temperature.push_back(at::zeros({0, shape_.heads}, slices_.options()));
    }
    for (std::size_t i = 0; i < points.ranges.size(); ++i) {
        const auto& range = points.ranges[i];
        const auto rows = [&](const at::Tensor& all) { return rows_of_range(all, range); };
        const auto of_sums = padded_sums(sums_gradient[range.sample]);
        auto x_rows = rows(of_x), feature_rows = rows(of_features);
        const auto found = slices_of(points, i).backward(rows(features), padded(states[range.sample]), of_sums,
                                                         rows(second.mixed), x_rows, feature_rows);
        add(found_.slices.weight, found.slices.narrow(2, 0, shape_.head_dim));
        add(found_.slices.bias, found.bias);
        if (shape_.point_temperature) {
            of_inverse_temperature.push_back(found.inverse_temperature.narrow(1, 0, range.count).t());
        } else {
            // (H, 1, S): weights of all points here.
            const auto totals = state_sums[static_cast<std::int64_t>(i)].select(2, shape_.head_dim).unsqueeze(1);
            add(found_.in.bias, at::cat({at::bmm(found.bias.unsqueeze(1), slices_).flatten(),
                                         at::bmm(totals, of_sums.narrow(2, 0, width_)).flatten()}));
        }
    }
    if (shape_.point_temperature) {
        of_projected.add_(of_features);
        auto inputs = points.temperature;
        inputs.push_back(points.temperature_input);
        const auto found = gradients_of({points.inverse_temperature}, inputs, {at::cat(of_inverse_temperature)});
        for (std::size_t i = 0; i < points.temperature.size(); ++i) {
            found_.temperature.resize(points.temperature.size());
            add(found_.temperature[i], found[i]);
        }
        of_projected.unflatten(1, {shape_.heads, width_})
            .narrow(2, 0, shape_.head_dim)
            .add_(found.back().view({-1, shape_.heads, shape_.head_dim}));
        add(found_.in.bias, sums_of_rows(of_projected));
    }
    add_product(found_.in.weight, of_projected, points.input.x_hat);
    return normal_rows_backward(at::mm(of_projected, in_.weight), points.input, second.x);
}

BlockWeights<at::Tensor> DeviceLayer::weight_gradients() const
{
    const auto& w = weights_;
    if (!found_.in.weight.defined() || !found_.mlp_out.weight.defined())
        return w.map([](const at::Tensor& weight) { return weight.defined() ? at::zeros_like(weight) : weight; });
    std::vector<UnfoldedLinear> products{{found_.in, {}, w.norm1, {}, {}},
                                         {found_.hidden, {w.hidden.weight}, w.norm2, {}, {}}};
    for (const auto& projection : projections_) products[0].weights.push_back(projection.weight);
    if (shape_.outputs > 0) products.push_back({found_.head, {w.head.weight}, w.norm3, {}, {}});
    unfold_weights(products);

    BlockWeights<at::Tensor> gradients;
    const auto inner = shape_.heads * width_;
    const auto part = [&](std::size_t i) -> Affine<at::Tensor> {
        const auto bias = found_.in.bias.narrow(0, static_cast<std::int64_t>(i) * inner, inner);
        return {with_width(products[0].weight_gradients[i], shape_.heads, shape_.head_dim),
                with_width(bias, shape_.heads, shape_.head_dim)};
    };
    gradients.norm1 = products[0].norm_gradient;
    gradients.project_x = part(0);
    if (!shape_.point_temperature) gradients.project_fx = part(1);
    gradients.hidden = {products[1].weight_gradients[0], found_.hidden.bias};
    gradients.norm2 = products[1].norm_gradient;
    gradients.slices = found_.slices;
    gradients.out = {width_ == shape_.head_dim
                         ? found_.out.weight
                         : with_width(found_.out.weight.t(), shape_.heads, shape_.head_dim).t().contiguous(),
                     found_.out.bias};
    gradients.mlp_out = found_.mlp_out;
    if (shape_.outputs > 0) {
        gradients.head = {products[2].weight_gradients[0], found_.head.bias.narrow(0, 0, shape_.outputs)};
        gradients.norm3 = products[2].norm_gradient;
    }
    if (w.activation.defined())
        gradients.activation = found_.activation.defined() ? found_.activation : at::zeros_like(w.activation);
    if (shape_.point_temperature) {
        const auto& t = found_.temperature;
        gradients.temperature = t[0];
        gradients.temperature_hidden = {t[1], t[2]};
        gradients.temperature_out = {t[3], t[4]};
    }
    return gradients;
}

}  // namespace meshard
