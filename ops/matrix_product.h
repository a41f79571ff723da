// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops/tile_product.h"

// LibTorch's BLAS, by its standard interface (column-major). at::mm costs microseconds a call, as much as a product of a tile's size.
extern "C" {
void sgemm_(const char* trans_a, const char* trans_b, const int* m, const int* n, const int* k, const float* alpha, const float* a, const int* lda,
            const float* b, const int* ldb, const float* beta, float* c, const int* ldc);
void dgemm_(const char* trans_a, const char* trans_b, const int* m, const int* n, const int* k, const double* alpha, const double* a, const int* lda,
            const double* b, const int* ldb, const double* beta, double* c, const int* ldc);
}

namespace meshard {

/// How a matrix lies in memory: row by row as said, or the transpose of what lies so.
enum class As : char { Given = 'N', Transposed = 'T' };

/// c = a b + beta c with c (m, n), inner extent k and beta 0 or 1. Row-major; `lda` and `ldb` are the distances between rows as they lie in memory. Runs on
/// one thread inside of at::parallel_for.
inline void multiply(As as_a, As as_b, std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
                     float beta, float* c, std::int64_t ldc)
{
    if (const auto product = tile_product()) {
        const auto lies = [](As as, const float* data, std::int64_t row) { return as == As::Given ? LyingMatrix{data, row, 1} : LyingMatrix{data, 1, row}; };
        product(m, n, k, lies(as_a, a, lda), lies(as_b, b, ldb), beta != 0, c, ldc);
        return;
    }
    const char ta = static_cast<char>(as_a), tb = static_cast<char>(as_b);
    const int rows = static_cast<int>(m), columns = static_cast<int>(n), inner = static_cast<int>(k);
    const int row_a = static_cast<int>(lda), row_b = static_cast<int>(ldb), row_c = static_cast<int>(ldc);
    const float one = 1;
    sgemm_(&tb, &ta, &columns, &rows, &inner, &one, b, &row_b, a, &row_a, &beta, c, &row_c);
}

inline void multiply(As as_a, As as_b, std::int64_t m, std::int64_t n, std::int64_t k, const double* a, std::int64_t lda, const double* b, std::int64_t ldb,
                     double beta, double* c, std::int64_t ldc)
{
    const char ta = static_cast<char>(as_a), tb = static_cast<char>(as_b);
    const int rows = static_cast<int>(m), columns = static_cast<int>(n), inner = static_cast<int>(k);
    const int row_a = static_cast<int>(lda), row_b = static_cast<int>(ldb), row_c = static_cast<int>(ldc);
    const double one = 1;
    dgemm_(&tb, &ta, &columns, &rows, &inner, &one, b, &row_b, a, &row_a, &beta, c, &row_c);
}

}  // namespace meshard
