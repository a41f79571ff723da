// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace meshard {

/// Loops over one tile of points. In single precision they are compiled for AVX-512, AVX2 and the baseline, one of
/// which is chosen when the program starts; exp and the normal distribution are polynomials then, exact up to rounding.
/// In double precision they use the C library.
///
/// A tile has one of two layouts: *by point*, (n, C), as tensors have; or *by row*, (rows, n), with one row for each
/// channel or slice, so that operations on points are vectorised.

/// y[t, c] += bias[c], by point.
template <class T>
void add_bias(T* y, const T* bias, std::int64_t n, std::int64_t num_channels);

/// y[r, t] += x[r, t], and y[r, t] /= x[t], by row.
template <class T>
void add_rows(T* y, const T* x, std::int64_t num_rows, std::int64_t n);
template <class T>
void divide_rows(T* y, const T* x, std::int64_t num_rows, std::int64_t n);

/// sums[c] += sum over t of x[t, c], by point.
template <class T>
void add_column_sums(T* sums, const T* x, std::int64_t n, std::int64_t num_channels);

/// sums[r * stride] += sum over t of x[r, t], by row.
template <class T>
void add_row_sums(T* sums, std::int64_t stride, const T* x, std::int64_t num_rows, std::int64_t n);

/// Layer norm by point: y = (x - mean) / sqrt(variance + epsilon) * scale + shift. Keeps 1 / sqrt(...) and the mean of
/// each point.
template <class T>
void layer_norm(T* y, T* mean, T* inverse, const T* x, const T* scale, const T* shift, std::int64_t n,
                std::int64_t num_channels, double epsilon);

/// Backward of layer norm: adds to x_gradient, scale_gradient, shift_gradient.
template <class T>
void layer_norm_backward(T* x_gradient, T* scale_gradient, T* shift_gradient, const T* y_gradient, const T* x,
                         const T* mean, const T* inverse, const T* scale, std::int64_t n, std::int64_t num_channels);

/// Softmax over the rows, for each point, in place.
template <class T>
void softmax_rows(T* logits, std::int64_t num_rows, std::int64_t n);

/// Converts the gradient of softmax's results to that of the logits, in place.
template <class T>
void softmax_rows_backward(T* gradient, const T* weights, std::int64_t num_rows, std::int64_t n);

/// x Phi(x) with the normal distribution Phi (the erf form).
template <class T>
void gelu(T* y, const T* x, std::int64_t count);

/// y = gelu(x) and, in place, gradient *= gelu'(x).
template <class T>
void gelu_backward(T* gradient, T* y, const T* x, std::int64_t count);

/// Rounds x to bfloat16, to nearest even, and converts back, exactly; bfloat16 numbers are given as their bits.
void to_bfloat16(std::uint16_t* y, const float* x, std::int64_t count);
void from_bfloat16(float* y, const std::uint16_t* x, std::int64_t count);

}  // namespace meshard
