// SPDX-License-Identifier: Apache-2.0
// The loops of tile_math.h for the type NUMBER. A template cannot be compiled for several processors, its
// specialisations can: tile_math.cpp includes this file once for each type.

namespace meshard {

template <>
FOR_EACH_PROCESSOR void add_bias(NUMBER* y, const NUMBER* bias, std::int64_t n, std::int64_t num_channels)
{
    for (std::int64_t t = 0; t < n; ++t) {
#pragma omp simd
        for (std::int64_t c = 0; c < num_channels; ++c) y[t * num_channels + c] += bias[c];
    }
}

template <>
FOR_EACH_PROCESSOR void add_rows(NUMBER* y, const NUMBER* x, std::int64_t num_rows, std::int64_t n)
{
#pragma omp simd
    for (std::int64_t i = 0; i < num_rows * n; ++i) y[i] += x[i];
}

template <>
FOR_EACH_PROCESSOR void divide_rows(NUMBER* y, const NUMBER* x, std::int64_t num_rows, std::int64_t n)
{
    for (std::int64_t r = 0; r < num_rows; ++r) {
#pragma omp simd
        for (std::int64_t t = 0; t < n; ++t) y[r * n + t] /= x[t];
    }
}

template <>
FOR_EACH_PROCESSOR void add_column_sums(NUMBER* sums, const NUMBER* x, std::int64_t n, std::int64_t num_channels)
{
    for (std::int64_t t = 0; t < n; ++t) {
#pragma omp simd
        for (std::int64_t c = 0; c < num_channels; ++c) sums[c] += x[t * num_channels + c];
    }
}

template <>
FOR_EACH_PROCESSOR void add_row_sums(NUMBER* sums, std::int64_t stride, const NUMBER* x, std::int64_t num_rows,
                                     std::int64_t n)
{
    for (std::int64_t r = 0; r < num_rows; ++r) {
        const NUMBER* row = x + r * n;
        NUMBER sum = 0;
#pragma omp simd reduction(+ : sum)
        for (std::int64_t t = 0; t < n; ++t) sum += row[t];
        sums[r * stride] += sum;
    }
}

template <>
FOR_EACH_PROCESSOR void layer_norm(NUMBER* y, NUMBER* mean, NUMBER* inverse, const NUMBER* x, const NUMBER* scale,
                                   const NUMBER* shift, std::int64_t n, std::int64_t num_channels, double epsilon)
{
    std::int64_t t = 0;
    for (; t + 4 <= n; t += 4)
        layer_norm_of_four(y + t * num_channels, mean + t, inverse + t, x + t * num_channels, scale, shift,
                           num_channels, static_cast<NUMBER>(epsilon));
    for (; t < n; ++t) {
        const NUMBER* row = x + t * num_channels;
        NUMBER sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
        for (std::int64_t c = 0; c < num_channels; ++c) sum += row[c];
        const NUMBER m = sum / static_cast<NUMBER>(num_channels);
#pragma omp simd reduction(+ : squares)
        for (std::int64_t c = 0; c < num_channels; ++c) squares += (row[c] - m) * (row[c] - m);
        const NUMBER i = 1 / std::sqrt(squares / static_cast<NUMBER>(num_channels) + static_cast<NUMBER>(epsilon));
#pragma omp simd
        for (std::int64_t c = 0; c < num_channels; ++c)
            y[t * num_channels + c] = (row[c] - m) * i * scale[c] + shift[c];
        mean[t] = m;
        inverse[t] = i;
    }
}

template <>
FOR_EACH_PROCESSOR void layer_norm_backward(NUMBER* x_gradient, NUMBER* scale_gradient, NUMBER* shift_gradient,
                                            const NUMBER* y_gradient, const NUMBER* x, const NUMBER* mean,
                                            const NUMBER* inverse, const NUMBER* scale, std::int64_t n,
                                            std::int64_t num_channels)
{
    for (std::int64_t t = 0; t < n; ++t) {
        const NUMBER *row = x + t * num_channels, *g = y_gradient + t * num_channels;
        NUMBER* out = x_gradient + t * num_channels;
        const NUMBER m = mean[t], i = inverse[t];
        NUMBER sum = 0, product = 0;
#pragma omp simd reduction(+ : sum, product)
        for (std::int64_t c = 0; c < num_channels; ++c) {
            const NUMBER scaled = g[c] * scale[c], normal = (row[c] - m) * i;
            sum += scaled;
            product += scaled * normal;
        }
        sum /= static_cast<NUMBER>(num_channels);
        product /= static_cast<NUMBER>(num_channels);
#pragma omp simd
        for (std::int64_t c = 0; c < num_channels; ++c) {
            const NUMBER normal = (row[c] - m) * i;
            out[c] += i * (g[c] * scale[c] - sum - normal * product);
            scale_gradient[c] += g[c] * normal;
            shift_gradient[c] += g[c];
        }
    }
}

template <>
FOR_EACH_PROCESSOR void softmax_rows(NUMBER* logits, std::int64_t num_rows, std::int64_t n)
{
    std::int64_t t = 0;
    for (; t + kStrip <= n; t += kStrip)
        softmax_strip(logits + t, num_rows, n, kStrip);  // length known at compile time
    if (t < n) softmax_strip(logits + t, num_rows, n, n - t);
}

template <>
FOR_EACH_PROCESSOR void softmax_rows_backward(NUMBER* gradient, const NUMBER* weights, std::int64_t num_rows,
                                              std::int64_t n)
{
    std::int64_t t = 0;
    for (; t + kStrip <= n; t += kStrip) softmax_backward_strip(gradient + t, weights + t, num_rows, n, kStrip);
    if (t < n) softmax_backward_strip(gradient + t, weights + t, num_rows, n, n - t);
}

template <>
FOR_EACH_PROCESSOR void gelu(NUMBER* y, const NUMBER* x, std::int64_t count)
{
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) y[i] = x[i] * (NUMBER(0.5) + centred_normal(x[i]));
}

template <>
FOR_EACH_PROCESSOR void gelu_backward(NUMBER* gradient, NUMBER* y, const NUMBER* x, std::int64_t count)
{
    constexpr NUMBER kDensity = std::numbers::inv_sqrtpi_v<NUMBER> / std::numbers::sqrt2_v<NUMBER>;
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i)
        y[i] = NUMBER(0.5) + centred_normal(x[i]);  // two loops: the compiler does not vectorise a single one
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) {
        gradient[i] *= y[i] + kDensity * x[i] * exponential(NUMBER(-0.5) * x[i] * x[i]);
        y[i] *= x[i];
    }
}

}  // namespace meshard
