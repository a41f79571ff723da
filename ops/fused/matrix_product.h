// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/fused/tile_product.h"

#include <cstdint>

namespace meshard {

/// Whether an operand is the stored matrix or its transpose.
enum class As : char { Given = 'N', Transposed = 'T' };

/// c = a b + addends with c (m, n), inner extent k. Row-major; `lda`, `ldb` and `ldc` are the row strides of the stored
/// matrices. Runs on one thread inside of at::parallel_for.
void multiply(As as_a, As as_b, std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t lda,
              const float* b, std::int64_t ldb, const Addends<float>& addends, float* c, std::int64_t ldc);
void multiply(As as_a, As as_b, std::int64_t m, std::int64_t n, std::int64_t k, const double* a, std::int64_t lda,
              const double* b, std::int64_t ldb, const Addends<double>& addends, double* c, std::int64_t ldc);

/// c += a b.
template <class T>
void add_product(As as_a, As as_b, std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t lda,
                 const T* b, std::int64_t ldb, T* c, std::int64_t ldc)
{
    multiply(as_a, as_b, m, n, k, a, lda, b, ldb, {.to_all = c, .row_stride = ldc}, c, ldc);
}

}  // namespace meshard
