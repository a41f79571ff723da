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

}  // namespace
}  // namespace meshard

#define NUMBER float
#define FOR_EACH_PROCESSOR MESHARD_FOR_EACH_PROCESSOR
#include "ops/fused/tile_math_body.h"
#undef NUMBER
#undef FOR_EACH_PROCESSOR

#define NUMBER double
#define FOR_EACH_PROCESSOR
#include "ops/fused/tile_math_body.h"

namespace meshard {

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
