// SPDX-License-Identifier: Apache-2.0
#include "ops/fused/block_tile.h"

#include "ops/fused/matrix_product.h"
#include "ops/fused/tile_math.h"

#include <algorithm>

namespace meshard {
namespace {

constexpr double kNormEpsilon = 1e-5;  // as in torch::nn::LayerNorm
// Bytes for the data of all stages of a block: a single stage uses a quarter, which fits 1 MiB of second-level cache.
constexpr std::int64_t kTileBytes = 4096 * 1024;
constexpr auto kGiven = As::Given, kTransposed = As::Transposed;

BlockWeights<std::int64_t> numbers_in_weights(const BlockShape& shape)
{
    const auto C = shape.channels, I = shape.inner(), H = shape.heads, S = shape.slices, R = shape.hidden,
               O = shape.outputs;
    BlockWeights<std::int64_t> numbers{.norm1 = {C, C},
                                       .project_x = {I * C, I},
                                       .slices = {S * I, H * S},
                                       .out = {C * I, C},
                                       .norm2 = {C, C},
                                       .hidden = {R * C, R},
                                       .mlp_out = {C * R, C}};
    if (has_parameter(shape.activation)) numbers.activation = 1;
    if (O > 0) {
        numbers.norm3 = {C, C};
        numbers.head = {O * C, O};
    }
    if (!shape.point_temperature) {
        numbers.project_fx = {I * C, I};
    } else {
        numbers.temperature = H;
        numbers.temperature_hidden = {S * shape.head_dim, S};
        numbers.temperature_out = {S, 1};
    }
    return numbers;
}

}  // namespace

template <class T>
BlockGradients<T>::BlockGradients(const BlockShape& shape)
{
    const auto sizes = numbers_in_weights(shape);
    const auto from = sizes.all();
    const auto to = this->all();
    std::int64_t total = 0;
    for (const auto* size : from) total += *size;
    values.assign(total, 0);
    auto* next = values.data();
    for (std::size_t i = 0; i < to.size(); ++i) {
        *to[i] = next;
        next += *from[i];
    }
}

template <class T>
void BlockGradients<T>::add(const BlockGradients& other)
{
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += other.values[i];
}

template <class T>
std::int64_t BlockActivations<T>::floats_per_point(const BlockShape& shape)
{
    return shape.projected() + shape.inner() + shape.channels + shape.hidden + (shape.outputs > 0 ? shape.channels : 0);
}

template <class T>
BlockActivations<T> BlockActivations<T>::in(T* memory, const BlockShape& shape, std::int64_t n)
{
    BlockActivations kept;
    kept.x_mid = memory;
    if (!shape.point_temperature) kept.features = kept.x_mid + shape.inner() * n;
    kept.mixed = kept.x_mid + shape.projected() * n;
    kept.residual = kept.mixed + shape.inner() * n;
    kept.hidden = kept.residual + shape.channels * n;
    if (shape.outputs > 0) kept.last = kept.hidden + shape.hidden * n;
    return kept;
}

std::int64_t points_per_tile(const BlockShape& shape, std::int64_t bytes_per_number)
{
    const auto per_point = BlockActivations<float>::floats_per_point(shape) + 4 * shape.channels + 2 * shape.inner() +
                           (shape.point_temperature ? shape.heads : 0) * shape.slices + 2 * shape.slices +
                           2 * shape.hidden;
    return std::clamp<std::int64_t>(kTileBytes / (per_point * bytes_per_number) / 16 * 16, 32, 512);
}

template <class T>
BlockTile<T>::BlockTile(const BlockShape& shape, std::int64_t max_points) : shape_(shape)
{
    const auto n = max_points, C = shape.channels, I = shape.inner(), S = shape.slices;
    const auto plus = shape.point_temperature ? n : 0;
    const std::array<std::int64_t, 18> sizes{C * n,
                                             S * n,
                                             S * n,
                                             shape.hidden * n,
                                             shape.hidden * n,
                                             C * n,
                                             std::max(C, I) * n,
                                             I * n,
                                             n,
                                             n,
                                             std::max(shape.num_sums(), 2 * C),
                                             shape.heads * S * plus,
                                             S * plus,
                                             S * plus,
                                             S * plus,
                                             plus,
                                             plus,
                                             plus};
    const std::array<T**, 18> buffers{&normal_,  &slice_weights_,   &weights_gradient_,
                                      &hidden_,  &hidden_gradient_, &last_gradient_,
                                      &rows_,    &more_rows_,       &mean_,
                                      &inverse_, &small_,           &logits_,
                                      &before_,  &after_,           &after_gradient_,
                                      &raw_,     &temperature_,     &temperature_gradient_};
    constexpr std::int64_t kLine = kCacheLine / sizeof(T);  // numbers in a cache line, at which each buffer starts
    std::int64_t total = 0;
    for (const auto size : sizes) total += (size + kLine - 1) / kLine * kLine;
    memory_ = make_lines<T>(total);
    auto* next = memory_.get();
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        *buffers[i] = next;
        next += (sizes[i] + kLine - 1) / kLine * kLine;
    }
}

template <class T>
void BlockTile<T>::normalize(const T* x, const Affine<const T*>& norm, std::int64_t n)
{
    layer_norm(normal_, mean_, inverse_, x, norm.weight, norm.bias, n, shape_.channels, kNormEpsilon);
}

template <class T>
void BlockTile<T>::project_rows(const Affine<const T*>& projection, std::int64_t n, T* rows) const
{
    const auto C = shape_.channels, I = shape_.inner();
    multiply(kGiven, kTransposed, I, n, C, projection.weight, C, normal_, C, {.to_rows = projection.bias}, rows, n);
}

template <class T>
const T* BlockTile<T>::weigh(const Weights& weights, const BlockActivations<T>& kept, std::int64_t head, std::int64_t n)
{
    const auto D = shape_.head_dim, S = shape_.slices;
    if (head == 0 && kept.noise.draw) gumbel_noise(kept.noise, shape_.heads * S, n, logits_);
    auto *w = slice_weights_, *logits = logits_ + head * S * n;  // (S, n)
    const auto* x_mid = kept.x_mid + head * D * n;
    multiply(kGiven, kGiven, S, n, D, weights.slices.weight + head * S * D, D, x_mid, n,
             {.to_rows = weights.slices.bias + head * S}, w, n);
    if (shape_.point_temperature) {
        compute_temperatures(weights, x_mid, head, n);
        if (kept.noise.draw) add_rows(w, logits, S, n);
        divide_rows(w, temperature_, S, n);
        std::copy_n(w, S * n, logits);
    }
    softmax_rows(w, S, n);
    return w;
}

template <class T>
void BlockTile<T>::compute_temperatures(const Weights& weights, const T* x_mid, std::int64_t head, std::int64_t n)
{
    const auto D = shape_.head_dim, S = shape_.slices;
    multiply(kGiven, kGiven, S, n, D, weights.temperature_hidden.weight, D, x_mid, n,
             {.to_rows = weights.temperature_hidden.bias}, before_, n);
    gelu(after_, before_, S * n);
    multiply(kGiven, kGiven, 1, n, S, weights.temperature_out.weight, S, after_, n,
             {.to_rows = weights.temperature_out.bias}, raw_, n);
    gelu(temperature_, raw_, n);
    for (std::int64_t t = 0; t < n; ++t)
        temperature_[t] = std::max(weights.temperature[head] + temperature_[t], T(kMinPointTemperature));
}

/// Converts the gradient of logits divided by temperatures, (S, n), to that of the logits, in place; adds to the
/// gradient of x_mid (D, n).
template <class T>
void BlockTile<T>::temperatures_backward(const Weights& weights, const T* x_mid, std::int64_t head, std::int64_t n,
                                         T* logits_gradient, T* x_mid_gradient, BlockGradients<T>* gradients)
{
    const auto D = shape_.head_dim, S = shape_.slices;
    const auto* logits = logits_ + head * S * n;
    compute_temperatures(weights, x_mid, head, n);
    divide_rows(logits_gradient, temperature_, S, n);
    // The gradients of a point's logits sum to zero, so that the same number can be subtracted from all its logits; the
    // largest one gives the least rounding.
    auto* largest = temperature_;
    std::copy_n(logits, n, largest);
    for (std::int64_t s = 1; s < S; ++s) {
#pragma omp simd
        for (std::int64_t t = 0; t < n; ++t)
            largest[t] = logits[s * n + t] > largest[t] ? logits[s * n + t] : largest[t];
    }
    std::fill_n(temperature_gradient_, n, T(0));
    for (std::int64_t s = 0; s < S; ++s) {
#pragma omp simd
        for (std::int64_t t = 0; t < n; ++t)
            temperature_gradient_[t] -= logits_gradient[s * n + t] * (logits[s * n + t] - largest[t]);
    }
    gelu(temperature_, raw_, n);
    for (std::int64_t t = 0; t < n; ++t) {
        if (weights.temperature[head] + temperature_[t] < T(kMinPointTemperature)) temperature_gradient_[t] = 0;
    }
    if (gradients) add_row_sums(gradients->temperature + head, 1, temperature_gradient_, 1, n);
    gelu_backward(temperature_gradient_, temperature_, raw_, n);
    multiply(kTransposed, kGiven, S, n, 1, weights.temperature_out.weight, S, temperature_gradient_, n, {},
             after_gradient_, n);
    if (gradients) {
        add_product(kGiven, kTransposed, S, 1, n, after_, n, temperature_gradient_, n,
                    gradients->temperature_out.weight, 1);
        add_row_sums(gradients->temperature_out.bias, 1, temperature_gradient_, 1, n);
    }
    gelu_backward(after_gradient_, after_, before_, S * n);
    if (gradients) {
        add_product(kGiven, kTransposed, S, D, n, after_gradient_, n, x_mid, n, gradients->temperature_hidden.weight,
                    D);
        add_row_sums(gradients->temperature_hidden.bias, 1, after_gradient_, S, n);
    }
    add_product(kTransposed, kGiven, D, n, S, weights.temperature_hidden.weight, D, after_gradient_, n, x_mid_gradient,
                n);
}

template <class T>
void BlockTile<T>::project(const Weights& weights, const T* x, std::int64_t n, const BlockActivations<T>& kept)
{
    normalize(x, weights.norm1, n);
    project_rows(weights.project_x, n, kept.x_mid);
}

template <class T>
void BlockTile<T>::project_both(const Weights& weights, const T* x, std::int64_t n, const BlockActivations<T>& kept)
{
    project(weights, x, n, kept);
    if (!shape_.point_temperature) project_rows(weights.project_fx, n, kept.features);
}

template <class T>
void BlockTile<T>::add_slice_sums(const Weights& weights, const T* x, std::int64_t n, const BlockActivations<T>& kept,
                                  double* sums)
{
    const auto D = shape_.head_dim, S = shape_.slices;
    project_both(weights, x, n, kept);
    std::fill_n(small_, shape_.num_sums(), T(0));
    for (std::int64_t h = 0; h < shape_.heads; ++h) {
        const auto* w = weigh(weights, kept, h, n);
        auto* tile_sums = small_ + h * S * (D + 1);
        multiply(kGiven, kTransposed, S, D, n, w, n, features(kept) + h * D * n, n, {}, tile_sums, D + 1);
        add_row_sums(tile_sums + D, D + 1, w, S, n);
    }
    for (std::int64_t i = 0; i < shape_.num_sums(); ++i) sums[i] += small_[i];
}

template <class T>
void BlockTile<T>::second_half(const Weights& weights, const T* x, const T* states, std::int64_t n,
                               const BlockActivations<T>& kept, T* result)
{
    const auto C = shape_.channels, I = shape_.inner(), D = shape_.head_dim, S = shape_.slices, R = shape_.hidden,
               O = shape_.outputs;
    for (std::int64_t h = 0; h < shape_.heads; ++h) {
        multiply(kTransposed, kGiven, D, n, S, states + h * S * D, D, weigh(weights, kept, h, n), n, {},
                 kept.mixed + h * D * n, n);
    }
    multiply(kTransposed, kTransposed, n, C, I, kept.mixed, n, weights.out.weight, I,
             {.to_columns = weights.out.bias, .to_all = x, .row_stride = C}, kept.residual, C);

    normalize(kept.residual, weights.norm2, n);
    multiply(kGiven, kTransposed, n, R, C, normal_, C, weights.hidden.weight, C, {.to_columns = weights.hidden.bias},
             kept.hidden, R);
    if (!result && O == 0) return;
    activate(shape_.activation, weights.activation, hidden_, kept.hidden, n * R);
    auto* after = O > 0 ? kept.last : result;  // (n, C)
    multiply(kGiven, kTransposed, n, C, R, hidden_, R, weights.mlp_out.weight, R,
             {.to_columns = weights.mlp_out.bias, .to_all = kept.residual, .row_stride = C}, after, C);
    if (!result || O == 0) return;

    normalize(kept.last, weights.norm3, n);
    multiply(kGiven, kTransposed, n, O, C, normal_, C, weights.head.weight, C, {.to_columns = weights.head.bias},
             result, O);
}

template <class T>
const T* BlockTile<T>::backward_of_head(const Weights& weights, std::int64_t n, const T* last, const T* result_gradient,
                                        BlockGradients<T>* gradients)
{
    const auto C = shape_.channels, O = shape_.outputs;
    normalize(last, weights.norm3, n);
    multiply(kGiven, kGiven, n, C, O, result_gradient, O, weights.head.weight, C, {}, rows_, C);
    auto* ignored = small_;
    if (gradients) {
        add_product(kTransposed, kGiven, O, C, n, result_gradient, O, normal_, C, gradients->head.weight, C);
        add_column_sums(gradients->head.bias, result_gradient, n, O);
    }
    std::fill_n(last_gradient_, n * C, T(0));
    layer_norm_backward(last_gradient_, gradients ? gradients->norm3.weight : ignored,
                        gradients ? gradients->norm3.bias : ignored + C, rows_, last, mean_, inverse_,
                        weights.norm3.weight, n, C);
    return last_gradient_;
}

template <class T>
void BlockTile<T>::second_half_backward(const Weights& weights, std::int64_t n, const BlockActivations<T>& kept,
                                        const T* result_gradient, T* x_gradient, T* mixed_gradient,
                                        double* states_gradient, BlockGradients<T>* gradients)
{
    const auto C = shape_.channels, I = shape_.inner(), D = shape_.head_dim, S = shape_.slices, R = shape_.hidden;
    const auto* g = shape_.outputs > 0 ? backward_of_head(weights, n, kept.last, result_gradient, gradients)
                                       : result_gradient;  // (n, C)

    // Backward of the MLP.
    multiply(kGiven, kGiven, n, R, C, g, C, weights.mlp_out.weight, R, {}, hidden_gradient_, R);
    activate_backward(shape_.activation, weights.activation, hidden_gradient_, hidden_, kept.hidden, n * R,
                      gradients ? gradients->activation : nullptr);
    normalize(kept.residual, weights.norm2, n);
    if (gradients) {
        add_product(kTransposed, kGiven, C, R, n, g, C, hidden_, R, gradients->mlp_out.weight, R);
        add_column_sums(gradients->mlp_out.bias, g, n, C);
        add_product(kTransposed, kGiven, R, C, n, hidden_gradient_, R, normal_, C, gradients->hidden.weight, C);
        add_column_sums(gradients->hidden.bias, hidden_gradient_, n, R);
    }
    multiply(kGiven, kGiven, n, C, R, hidden_gradient_, R, weights.hidden.weight, C, {}, rows_, C);
    std::copy_n(g, n * C, x_gradient);
    layer_norm_backward(x_gradient, gradients ? gradients->norm2.weight : small_,
                        gradients ? gradients->norm2.bias : small_ + C, rows_, kept.residual, mean_, inverse_,
                        weights.norm2.weight, n, C);

    // Backward of the output projection and the slices' states.
    mix_backward(weights, x_gradient, n, mixed_gradient);
    if (gradients) {
        add_product(kTransposed, kTransposed, C, I, n, x_gradient, C, kept.mixed, n, gradients->out.weight, I);
        add_column_sums(gradients->out.bias, x_gradient, n, C);
    }
    if (!states_gradient) return;
    for (std::int64_t h = 0; h < shape_.heads; ++h) {
        multiply(kGiven, kTransposed, S, D, n, weigh(weights, kept, h, n), n, mixed_gradient + h * D * n, n, {},
                 small_ + h * S * D, D);
    }
    for (std::int64_t i = 0; i < shape_.heads * S * D; ++i) states_gradient[i] += small_[i];
}

template <class T>
void BlockTile<T>::mix_backward(const Weights& weights, const T* x_gradient, std::int64_t n, T* mixed_gradient) const
{
    const auto C = shape_.channels, I = shape_.inner();
    multiply(kTransposed, kTransposed, I, n, C, weights.out.weight, I, x_gradient, C, {}, mixed_gradient, n);
}

template <class T>
void BlockTile<T>::add_slice_sums_backward(const Weights& weights, const T* x, const T* states, const T* sums_gradient,
                                           std::int64_t n, const BlockActivations<T>& kept, const T* mixed_gradient,
                                           T* x_gradient, BlockGradients<T>* gradients)
{
    const auto C = shape_.channels, I = shape_.inner(), D = shape_.head_dim, S = shape_.slices;
    const bool plus = shape_.point_temperature;
    auto *x_mid_gradient = rows_, *features_gradient = plus ? rows_ : more_rows_;  // (I, n)
    for (std::int64_t h = 0; h < shape_.heads; ++h) {
        const auto* w = weigh(weights, kept, h, n);
        const auto* g = sums_gradient + h * S * (D + 1);
        auto* wg = weights_gradient_;
        for (std::int64_t s = 0; s < S; ++s) small_[s] = g[s * (D + 1) + D];  // gradient of the slice's weight
        multiply(kGiven, kGiven, S, n, D, states + h * S * D, D, mixed_gradient + h * D * n, n, {.to_rows = small_}, wg,
                 n);
        add_product(kGiven, kGiven, S, n, D, g, D + 1, features(kept) + h * D * n, n, wg, n);
        multiply(kTransposed, kGiven, D, n, S, g, D + 1, w, n, {}, features_gradient + h * D * n, n);
        softmax_rows_backward(wg, w, S, n);
        if (plus)
            temperatures_backward(weights, kept.x_mid + h * D * n, h, n, wg, x_mid_gradient + h * D * n, gradients);
        auto* of_head = x_mid_gradient + h * D * n;
        const Addends<T> earlier{.to_all = plus ? of_head : nullptr, .row_stride = n};
        multiply(kTransposed, kGiven, D, n, S, weights.slices.weight + h * S * D, D, wg, n, earlier, of_head, n);
        if (!gradients) continue;
        add_product(kGiven, kTransposed, S, D, n, wg, n, kept.x_mid + h * D * n, n,
                    gradients->slices.weight + h * S * D, D);
        add_row_sums(gradients->slices.bias + h * S, 1, wg, S, n);
    }

    normalize(x, weights.norm1, n);
    if (gradients) {
        add_product(kGiven, kGiven, I, C, n, x_mid_gradient, n, normal_, C, gradients->project_x.weight, C);
        add_row_sums(gradients->project_x.bias, 1, x_mid_gradient, I, n);
    }
    if (gradients && !plus) {
        add_product(kGiven, kGiven, I, C, n, features_gradient, n, normal_, C, gradients->project_fx.weight, C);
        add_row_sums(gradients->project_fx.bias, 1, features_gradient, I, n);
    }
    multiply(kTransposed, kGiven, n, C, I, x_mid_gradient, n, weights.project_x.weight, C, {}, last_gradient_, C);
    if (!plus)
        add_product(kTransposed, kGiven, n, C, I, features_gradient, n, weights.project_fx.weight, C, last_gradient_,
                    C);
    layer_norm_backward(x_gradient, gradients ? gradients->norm1.weight : small_,
                        gradients ? gradients->norm1.bias : small_ + C, last_gradient_, x, mean_, inverse_,
                        weights.norm1.weight, n, C);
}

template <class T>
MlpTile<T>::MlpTile(std::int64_t in, std::int64_t hidden, std::int64_t out, const ActivationFunction* activation,
                    std::int64_t max_points)
    : in_(in), hidden_(hidden), out_(out), activation_(activation), before_(make_lines<T>(hidden * max_points)),
      after_(make_lines<T>(hidden * max_points)), gradient_(make_lines<T>(hidden * max_points))
{
}

template <class T>
void MlpTile<T>::hide(const Weights& weights, const T* x, std::int64_t n)
{
    multiply(kGiven, kTransposed, n, hidden_, in_, x, in_, weights.hidden, in_, {.to_columns = weights.hidden_bias},
             before_.get(), hidden_);
}

template <class T>
void MlpTile<T>::forward(const Weights& weights, const T* x, const T* offset, std::int64_t n, T* result)
{
    hide(weights, x, n);
    activate(activation_, weights.activation, after_.get(), before_.get(), n * hidden_);
    multiply(kGiven, kTransposed, n, out_, hidden_, after_.get(), hidden_, weights.out, hidden_,
             {.to_columns = weights.out_bias}, result, out_);
    if (offset) add_bias(result, offset, n, out_);
}

template <class T>
void MlpTile<T>::backward(const Weights& weights, const T* x, std::int64_t n, const T* result_gradient, T* x_gradient,
                          const Gradients& gradients, T* offset_gradient)
{
    hide(weights, x, n);
    multiply(kGiven, kGiven, n, hidden_, out_, result_gradient, out_, weights.out, hidden_, {}, gradient_.get(),
             hidden_);
    activate_backward(activation_, weights.activation, gradient_.get(), after_.get(), before_.get(), n * hidden_,
                      gradients.activation);
    add_product(kTransposed, kGiven, out_, hidden_, n, result_gradient, out_, after_.get(), hidden_, gradients.out,
                hidden_);
    add_column_sums(gradients.out_bias, result_gradient, n, out_);
    if (offset_gradient) add_column_sums(offset_gradient, result_gradient, n, out_);
    add_product(kTransposed, kGiven, hidden_, in_, n, gradient_.get(), hidden_, x, in_, gradients.hidden, in_);
    add_column_sums(gradients.hidden_bias, gradient_.get(), n, hidden_);
    if (x_gradient)
        multiply(kGiven, kGiven, n, in_, hidden_, gradient_.get(), hidden_, weights.hidden, in_, {}, x_gradient, in_);
}

template struct BlockGradients<float>;
template struct BlockGradients<double>;
template struct BlockActivations<float>;
template struct BlockActivations<double>;
template class BlockTile<float>;
template class BlockTile<double>;
template class MlpTile<float>;
template class MlpTile<double>;

}  // namespace meshard
