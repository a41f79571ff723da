// SPDX-License-Identifier: Apache-2.0
#include "ops/fused/tile_math.h"

#include <bit>
#include <cmath>
#include <numbers>

// Compiled with fused multiply-adds, and without errno and traps of mathematical functions: otherwise compilers do not
// vectorise.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define MESHARD_FOR_EACH_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define MESHARD_FOR_EACH_PROCESSOR
#endif
#define MESHARD_INLINE inline __attribute__((always_inline))

namespace meshard {
namespace {

/// exp(x) for x from -87 to 0, clamped below; relative error below 1.2e-7. exp(r) is 1 + r + r^2 P(r) here, P the
/// minimax polynomial on |r| <= ln(2) / 2.
MESHARD_INLINE float exponential(float x)
{
    constexpr float kLog2E = 1.44269504F, kRound = 12582912.0F;  // adding 1.5 * 2^23 rounds to an integer
    constexpr float kLn2High = 0.693359375F, kLn2Low = -2.12194440e-4F;
    x = x < -87.0F ? -87.0F : x;
    const float shifted = x * kLog2E + kRound;
    const float whole = shifted - kRound;
    const float r = (x - whole * kLn2High) - whole * kLn2Low;
    float p = 0.0013814539F;
    p = p * r + 0.0083687454F;
    p = p * r + 0.041668389F;
    p = p * r + 0.16666521F;
    p = p * r + 0.49999994F;
    p = p * r + 1.0F;
    p = p * r + 1.0F;
    const auto exponent = std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(kRound);
    return p * std::bit_cast<float>((exponent + 127) << 23);
}

MESHARD_INLINE double exponential(double x)
{
    return std::exp(x);
}

/// Phi(x) - 1/2 of the normal distribution: x P(x^2), P the Chebyshev interpolant on |x| <= 5.5; absolute error below
/// 7e-8.
MESHARD_INLINE float centred_normal(float x)
{
    constexpr float kEnd = 5.5F;
    x = x < -kEnd ? -kEnd : x;
    x = x > kEnd ? kEnd : x;
    const float v = x * x * (2.0F / (kEnd * kEnd)) - 1.0F;
    constexpr float kCoefficients[] = {
        0.000118079995F, -0.000285676331F, 0.000183916665F, -0.000356754608F, 0.00140742643F, -0.00265870243F,
        0.00407412974F,  -0.00665067835F,  0.0104686366F,   -0.015062524F,    0.0203073174F,  -0.0260361508F,
        0.0320769101F,   -0.0387937948F,   0.0477373339F,   -0.0641723126F,   0.12855193F};
    float p = kCoefficients[0];
#pragma GCC unroll 16
    for (int i = 1; i <= 16; ++i) p = p * v + kCoefficients[i];
    return p * x;
}

MESHARD_INLINE double centred_normal(double x)
{
    return 0.5 * std::erf(x * (std::numbers::sqrt2 / 2));
}

template <class T>
MESHARD_INLINE void add_bias_body(T* y, const T* bias, std::int64_t n, std::int64_t num_channels)
{
    for (std::int64_t t = 0; t < n; ++t) {
#pragma omp simd
        for (std::int64_t c = 0; c < num_channels; ++c) y[t * num_channels + c] += bias[c];
    }
}

template <class T>
MESHARD_INLINE void add_rows_body(T* y, const T* x, std::int64_t num_rows, std::int64_t n)
{
#pragma omp simd
    for (std::int64_t i = 0; i < num_rows * n; ++i) y[i] += x[i];
}

template <class T>
MESHARD_INLINE void divide_rows_body(T* y, const T* x, std::int64_t num_rows, std::int64_t n)
{
    for (std::int64_t r = 0; r < num_rows; ++r) {
#pragma omp simd
        for (std::int64_t t = 0; t < n; ++t) y[r * n + t] /= x[t];
    }
}

template <class T>
MESHARD_INLINE void add_column_sums_body(T* sums, const T* x, std::int64_t n, std::int64_t num_channels)
{
    for (std::int64_t t = 0; t < n; ++t) {
#pragma omp simd
        for (std::int64_t c = 0; c < num_channels; ++c) sums[c] += x[t * num_channels + c];
    }
}

template <class T>
MESHARD_INLINE void add_row_sums_body(T* sums, std::int64_t stride, const T* x, std::int64_t num_rows, std::int64_t n)
{
    for (std::int64_t r = 0; r < num_rows; ++r) {
        const T* row = x + r * n;
        T sum = 0;
#pragma omp simd reduction(+ : sum)
        for (std::int64_t t = 0; t < n; ++t) sum += row[t];
        sums[r * stride] += sum;
    }
}

/// Layer norm of four points at once, so that their sums are computed in parallel.
template <class T>
MESHARD_INLINE void layer_norm_of_four(T* y, T* mean, T* inverse, const T* x, const T* scale, const T* shift,
                                       std::int64_t num_channels, T epsilon)
{
    const T *x0 = x, *x1 = x + num_channels, *x2 = x + 2 * num_channels, *x3 = x + 3 * num_channels;
    T *y0 = y, *y1 = y + num_channels, *y2 = y + 2 * num_channels, *y3 = y + 3 * num_channels;
    const T count = static_cast<T>(num_channels);
    T m0 = 0, m1 = 0, m2 = 0, m3 = 0, i0 = 0, i1 = 0, i2 = 0, i3 = 0;
#pragma omp simd reduction(+ : m0, m1, m2, m3)
    for (std::int64_t c = 0; c < num_channels; ++c) m0 += x0[c], m1 += x1[c], m2 += x2[c], m3 += x3[c];
    m0 /= count, m1 /= count, m2 /= count, m3 /= count;
#pragma omp simd reduction(+ : i0, i1, i2, i3)
    for (std::int64_t c = 0; c < num_channels; ++c) {
        i0 += (x0[c] - m0) * (x0[c] - m0);
        i1 += (x1[c] - m1) * (x1[c] - m1);
        i2 += (x2[c] - m2) * (x2[c] - m2);
        i3 += (x3[c] - m3) * (x3[c] - m3);
    }
    i0 = 1 / std::sqrt(i0 / count + epsilon), i1 = 1 / std::sqrt(i1 / count + epsilon),
    i2 = 1 / std::sqrt(i2 / count + epsilon), i3 = 1 / std::sqrt(i3 / count + epsilon);
#pragma omp simd
    for (std::int64_t c = 0; c < num_channels; ++c) {
        y0[c] = (x0[c] - m0) * i0 * scale[c] + shift[c];
        y1[c] = (x1[c] - m1) * i1 * scale[c] + shift[c];
        y2[c] = (x2[c] - m2) * i2 * scale[c] + shift[c];
        y3[c] = (x3[c] - m3) * i3 * scale[c] + shift[c];
    }
    mean[0] = m0, mean[1] = m1, mean[2] = m2, mean[3] = m3;
    inverse[0] = i0, inverse[1] = i1, inverse[2] = i2, inverse[3] = i3;
}

template <class T>
MESHARD_INLINE void layer_norm_body(T* y, T* mean, T* inverse, const T* x, const T* scale, const T* shift,
                                    std::int64_t n, std::int64_t num_channels, T epsilon)
{
    std::int64_t t = 0;
    for (; t + 4 <= n; t += 4)
        layer_norm_of_four(y + t * num_channels, mean + t, inverse + t, x + t * num_channels, scale, shift,
                           num_channels, epsilon);
    for (; t < n; ++t) {
        const T* row = x + t * num_channels;
        T sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
        for (std::int64_t c = 0; c < num_channels; ++c) sum += row[c];
        const T m = sum / static_cast<T>(num_channels);
#pragma omp simd reduction(+ : squares)
        for (std::int64_t c = 0; c < num_channels; ++c) squares += (row[c] - m) * (row[c] - m);
        const T i = 1 / std::sqrt(squares / static_cast<T>(num_channels) + epsilon);
#pragma omp simd
        for (std::int64_t c = 0; c < num_channels; ++c)
            y[t * num_channels + c] = (row[c] - m) * i * scale[c] + shift[c];
        mean[t] = m;
        inverse[t] = i;
    }
}

template <class T>
MESHARD_INLINE void layer_norm_backward_body(T* x_gradient, T* scale_gradient, T* shift_gradient, const T* y_gradient,
                                             const T* x, const T* mean, const T* inverse, const T* scale,
                                             std::int64_t n, std::int64_t num_channels)
{
    for (std::int64_t t = 0; t < n; ++t) {
        const T *row = x + t * num_channels, *g = y_gradient + t * num_channels;
        T* out = x_gradient + t * num_channels;
        const T m = mean[t], i = inverse[t];
        T sum = 0, product = 0;
#pragma omp simd reduction(+ : sum, product)
        for (std::int64_t c = 0; c < num_channels; ++c) {
            const T scaled = g[c] * scale[c], normal = (row[c] - m) * i;
            sum += scaled;
            product += scaled * normal;
        }
        sum /= static_cast<T>(num_channels);
        product /= static_cast<T>(num_channels);
#pragma omp simd
        for (std::int64_t c = 0; c < num_channels; ++c) {
            const T normal = (row[c] - m) * i;
            out[c] += i * (g[c] * scale[c] - sum - normal * product);
            scale_gradient[c] += g[c] * normal;
            shift_gradient[c] += g[c];
        }
    }
}

// Number of points that stay in the first-level cache from one pass over the rows to the next.
constexpr std::int64_t kStrip = 64;

/// Softmax of at most kStrip points; consecutive rows are `stride` apart.
template <class T>
MESHARD_INLINE void softmax_strip(T* logits, std::int64_t num_rows, std::int64_t stride, std::int64_t n)
{
    T largest[kStrip], sum[kStrip];
    for (std::int64_t t = 0; t < n; ++t) largest[t] = logits[t], sum[t] = 0;
    for (std::int64_t r = 1; r < num_rows; ++r) {
        const T* row = logits + r * stride;
#pragma omp simd
        for (std::int64_t t = 0; t < n; ++t) largest[t] = row[t] > largest[t] ? row[t] : largest[t];
    }
    for (std::int64_t r = 0; r < num_rows; ++r) {
        T* row = logits + r * stride;
#pragma omp simd
        for (std::int64_t t = 0; t < n; ++t) {
            row[t] = exponential(row[t] - largest[t]);
            sum[t] += row[t];
        }
    }
#pragma omp simd
    for (std::int64_t t = 0; t < n; ++t) sum[t] = 1 / sum[t];
    for (std::int64_t r = 0; r < num_rows; ++r) {
        T* row = logits + r * stride;
#pragma omp simd
        for (std::int64_t t = 0; t < n; ++t) row[t] *= sum[t];
    }
}

template <class T>
MESHARD_INLINE void softmax_rows_body(T* logits, std::int64_t num_rows, std::int64_t n)
{
    std::int64_t t = 0;
    for (; t + kStrip <= n; t += kStrip)
        softmax_strip(logits + t, num_rows, n, kStrip);  // length known at compile time
    if (t < n) softmax_strip(logits + t, num_rows, n, n - t);
}

template <class T>
MESHARD_INLINE void softmax_backward_strip(T* gradient, const T* weights, std::int64_t num_rows, std::int64_t stride,
                                           std::int64_t n)
{
    T product[kStrip] = {};
    for (std::int64_t r = 0; r < num_rows; ++r) {
#pragma omp simd
        for (std::int64_t t = 0; t < n; ++t) product[t] += weights[r * stride + t] * gradient[r * stride + t];
    }
    for (std::int64_t r = 0; r < num_rows; ++r) {
#pragma omp simd
        for (std::int64_t t = 0; t < n; ++t)
            gradient[r * stride + t] = weights[r * stride + t] * (gradient[r * stride + t] - product[t]);
    }
}

template <class T>
MESHARD_INLINE void softmax_rows_backward_body(T* gradient, const T* weights, std::int64_t num_rows, std::int64_t n)
{
    std::int64_t t = 0;
    for (; t + kStrip <= n; t += kStrip) softmax_backward_strip(gradient + t, weights + t, num_rows, n, kStrip);
    if (t < n) softmax_backward_strip(gradient + t, weights + t, num_rows, n, n - t);
}

template <class T>
MESHARD_INLINE void gelu_body(T* y, const T* x, std::int64_t count)
{
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) y[i] = x[i] * (T(0.5) + centred_normal(x[i]));
}

template <class T>
MESHARD_INLINE void gelu_backward_body(T* gradient, T* y, const T* x, std::int64_t count)
{
    constexpr T kDensity = std::numbers::inv_sqrtpi_v<T> / std::numbers::sqrt2_v<T>;
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i)
        y[i] = T(0.5) + centred_normal(x[i]);  // two loops: the compiler does not vectorise a single one
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) {
        gradient[i] *= y[i] + kDensity * x[i] * exponential(T(-0.5) * x[i] * x[i]);
        y[i] *= x[i];
    }
}

}  // namespace

// A template cannot be compiled for several processors, its specialisations can.

template <>
MESHARD_FOR_EACH_PROCESSOR void add_bias(float* y, const float* bias, std::int64_t n, std::int64_t num_channels)
{
    add_bias_body(y, bias, n, num_channels);
}

template <>
void add_bias(double* y, const double* bias, std::int64_t n, std::int64_t num_channels)
{
    add_bias_body(y, bias, n, num_channels);
}

template <>
MESHARD_FOR_EACH_PROCESSOR void add_rows(float* y, const float* x, std::int64_t num_rows, std::int64_t n)
{
    add_rows_body(y, x, num_rows, n);
}

template <>
void add_rows(double* y, const double* x, std::int64_t num_rows, std::int64_t n)
{
    add_rows_body(y, x, num_rows, n);
}

template <>
MESHARD_FOR_EACH_PROCESSOR void divide_rows(float* y, const float* x, std::int64_t num_rows, std::int64_t n)
{
    divide_rows_body(y, x, num_rows, n);
}

template <>
void divide_rows(double* y, const double* x, std::int64_t num_rows, std::int64_t n)
{
    divide_rows_body(y, x, num_rows, n);
}

template <>
MESHARD_FOR_EACH_PROCESSOR void add_column_sums(float* sums, const float* x, std::int64_t n, std::int64_t num_channels)
{
    add_column_sums_body(sums, x, n, num_channels);
}

template <>
void add_column_sums(double* sums, const double* x, std::int64_t n, std::int64_t num_channels)
{
    add_column_sums_body(sums, x, n, num_channels);
}

template <>
MESHARD_FOR_EACH_PROCESSOR void add_row_sums(float* sums, std::int64_t stride, const float* x, std::int64_t num_rows,
                                             std::int64_t n)
{
    add_row_sums_body(sums, stride, x, num_rows, n);
}

template <>
void add_row_sums(double* sums, std::int64_t stride, const double* x, std::int64_t num_rows, std::int64_t n)
{
    add_row_sums_body(sums, stride, x, num_rows, n);
}

template <>
MESHARD_FOR_EACH_PROCESSOR void layer_norm(float* y, float* mean, float* inverse, const float* x, const float* scale,
                                           const float* shift, std::int64_t n, std::int64_t num_channels,
                                           double epsilon)
{
    layer_norm_body(y, mean, inverse, x, scale, shift, n, num_channels, static_cast<float>(epsilon));
}

template <>
void layer_norm(double* y, double* mean, double* inverse, const double* x, const double* scale, const double* shift,
                std::int64_t n, std::int64_t num_channels, double epsilon)
{
    layer_norm_body(y, mean, inverse, x, scale, shift, n, num_channels, static_cast<double>(epsilon));
}

template <>
MESHARD_FOR_EACH_PROCESSOR void layer_norm_backward(float* x_gradient, float* scale_gradient, float* shift_gradient,
                                                    const float* y_gradient, const float* x, const float* mean,
                                                    const float* inverse, const float* scale, std::int64_t n,
                                                    std::int64_t num_channels)
{
    layer_norm_backward_body(x_gradient, scale_gradient, shift_gradient, y_gradient, x, mean, inverse, scale, n,
                             num_channels);
}

template <>
void layer_norm_backward(double* x_gradient, double* scale_gradient, double* shift_gradient, const double* y_gradient,
                         const double* x, const double* mean, const double* inverse, const double* scale,
                         std::int64_t n, std::int64_t num_channels)
{
    layer_norm_backward_body(x_gradient, scale_gradient, shift_gradient, y_gradient, x, mean, inverse, scale, n,
                             num_channels);
}

template <>
MESHARD_FOR_EACH_PROCESSOR void softmax_rows(float* logits, std::int64_t num_rows, std::int64_t n)
{
    softmax_rows_body(logits, num_rows, n);
}

template <>
void softmax_rows(double* logits, std::int64_t num_rows, std::int64_t n)
{
    softmax_rows_body(logits, num_rows, n);
}

template <>
MESHARD_FOR_EACH_PROCESSOR void softmax_rows_backward(float* gradient, const float* weights, std::int64_t num_rows,
                                                      std::int64_t n)
{
    softmax_rows_backward_body(gradient, weights, num_rows, n);
}

template <>
void softmax_rows_backward(double* gradient, const double* weights, std::int64_t num_rows, std::int64_t n)
{
    softmax_rows_backward_body(gradient, weights, num_rows, n);
}

template <>
MESHARD_FOR_EACH_PROCESSOR void gelu(float* y, const float* x, std::int64_t count)
{
    gelu_body(y, x, count);
}

template <>
void gelu(double* y, const double* x, std::int64_t count)
{
    gelu_body(y, x, count);
}

template <>
MESHARD_FOR_EACH_PROCESSOR void gelu_backward(float* gradient, float* y, const float* x, std::int64_t count)
{
    gelu_backward_body(gradient, y, x, count);
}

template <>
void gelu_backward(double* gradient, double* y, const double* x, std::int64_t count)
{
    gelu_backward_body(gradient, y, x, count);
}

MESHARD_FOR_EACH_PROCESSOR void to_bfloat16(std::uint16_t* y, const float* x, std::int64_t count)
{
    constexpr std::uint32_t kMagnitude = 0x7FFFFFFF, kInfinity = 0x7F800000, kQuiet = 0x00400000;
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) {
        const auto bits = std::bit_cast<std::uint32_t>(x[i]);
        const auto rounded = bits + 0x7FFF + ((bits >> 16) & 1);
        y[i] = static_cast<std::uint16_t>(((bits & kMagnitude) > kInfinity ? bits | kQuiet : rounded) >> 16);
    }
}

MESHARD_FOR_EACH_PROCESSOR void from_bfloat16(float* y, const std::uint16_t* x, std::int64_t count)
{
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) y[i] = std::bit_cast<float>(static_cast<std::uint32_t>(x[i]) << 16);
}

}  // namespace meshard
