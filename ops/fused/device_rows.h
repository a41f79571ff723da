// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/fused/block_weights.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace meshard {

// Operations on rows of points (n, C) between the products of a layer, and on the products' weights, each in one pass
// by a kernel (ops/cuda/tile_kernels.h). Tensors are plain, without history; vectors over the channels and weights are
// float for half precision, else of the rows' type.

struct NormalRows {
    at::Tensor x_hat;   ///< (n, C)
    at::Tensor scales;  ///< (n): 1 / deviation
};

/// (x + add + bias - mean) / deviation. `add` and `bias` (C) may be undefined. If `sum` is not null, it becomes x + add
/// + bias + after.
NormalRows normal_rows(const at::Tensor& x, const at::Tensor& add = {}, const at::Tensor& bias = {},
                       const at::Tensor& after = {}, at::Tensor* sum = nullptr);

/// Returns before + the gradient of x; overwrites `gradient`, that of x_hat. `before` may be undefined; the sums (C)
/// over rows are computed unless null.
at::Tensor normal_rows_backward(const at::Tensor& gradient, const NormalRows& rows, const at::Tensor& before,
                                at::Tensor* before_sums = nullptr, at::Tensor* result_sums = nullptr);

/// gelu(x), optionally in place.
at::Tensor gelu_of(const at::Tensor& x, bool in_place);

/// Replaces `gradient` (n, R) of gelu(x) by that of x; returns its sums (R) over rows. If `y` is not null, it becomes
/// gelu(x).
at::Tensor gelu_backward_in_place(const at::Tensor& x, const at::Tensor& gradient, at::Tensor* y);

/// Sums over the rows of (n, C).
at::Tensor sums_of_rows(const at::Tensor& x);

/// left^T right, in float for half precision.
at::Tensor sums_of_products(const at::Tensor& left, const at::Tensor& right);

/// A product, the norm before it, and where its weight and bias go with that norm folded in.
struct FoldedLinear {
    Affine<at::Tensor> product;  ///< (R, C), (R); a product without bias has no norm
    Affine<at::Tensor> norm;     ///< (C), (C); undefined: none
    Affine<at::Tensor> folded;   ///< like `product`, of the points' type
};

/// Computes W diag(scale), b + W shift of each product.
void fold_weights(const std::vector<FoldedLinear>& products);

/// The gradients of one or two weights of a product, one below the other, and of the norm before it.
struct UnfoldedLinear {
    Affine<at::Tensor> gradient;      ///< gradient of the folded weight and bias
    std::vector<at::Tensor> weights;  ///< (R, C) each, before the norm is folded in
    Affine<at::Tensor> norm;
    std::vector<at::Tensor> weight_gradients;  ///< results
    Affine<at::Tensor> norm_gradient;
};

/// Computes the results of `products`.
void unfold_weights(std::vector<UnfoldedLinear>& products);

/// The type of vectors over the channels of rows of `type`.
at::ScalarType sum_type_of(at::ScalarType type);

}  // namespace meshard
