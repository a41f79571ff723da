// SPDX-License-Identifier: Apache-2.0
#include "ops/fused/matrix_product.h"

// LibTorch's BLAS, by its standard interface (column-major). A call of at::mm has an overhead of microseconds, as much
// as a product of a tile's size takes.
extern "C" {
void sgemm_(const char* trans_a, const char* trans_b, const int* m, const int* n, const int* k, const float* alpha,
            const float* a, const int* lda, const float* b, const int* ldb, const float* beta, float* c,
            const int* ldc);
void dgemm_(const char* trans_a, const char* trans_b, const int* m, const int* n, const int* k, const double* alpha,
            const double* a, const int* lda, const double* b, const int* ldb, const double* beta, double* c,
            const int* ldc);
}

namespace meshard {
namespace {

void gemm(const char* ta, const char* tb, const int* m, const int* n, const int* k, const float* alpha, const float* a,
          const int* lda, const float* b, const int* ldb, const float* beta, float* c, const int* ldc)
{
    sgemm_(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void gemm(const char* ta, const char* tb, const int* m, const int* n, const int* k, const double* alpha,
          const double* a, const int* lda, const double* b, const int* ldb, const double* beta, double* c,
          const int* ldc)
{
    dgemm_(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

/// Writes the sum of the addends to c. Returns false, without writing, if there are none.
template <class T>
bool begin_with(const Addends<T>& addends, std::int64_t m, std::int64_t n, T* c, std::int64_t ldc)
{
    if (!addends.to_rows && !addends.to_columns) {
        if (addends.to_all == c && addends.row_stride == ldc) return true;
        if (!addends.to_all) return false;
    }
    for (std::int64_t i = 0; i < m; ++i) {
        const T of_row = addends.to_rows ? addends.to_rows[i] : T(0);
        const T* all = addends.to_all ? addends.to_all + i * addends.row_stride : nullptr;
        T* to = c + i * ldc;
        if (all && addends.to_columns) {
            for (std::int64_t j = 0; j < n; ++j) to[j] = of_row + addends.to_columns[j] + all[j];
        } else if (const T* more = all ? all : addends.to_columns) {
            for (std::int64_t j = 0; j < n; ++j) to[j] = of_row + more[j];
        } else {
            for (std::int64_t j = 0; j < n; ++j) to[j] = of_row;
        }
    }
    return true;
}

/// The BLAS is column-major: computes the transpose of the product, which is the product of the transposes in reverse
/// order.
template <class T>
void multiply_by_blas(As as_a, As as_b, std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t lda,
                      const T* b, std::int64_t ldb, const Addends<T>& addends, T* c, std::int64_t ldc)
{
    const char ta = static_cast<char>(as_a), tb = static_cast<char>(as_b);
    const int rows = static_cast<int>(m), columns = static_cast<int>(n), inner = static_cast<int>(k);
    const int row_a = static_cast<int>(lda), row_b = static_cast<int>(ldb), row_c = static_cast<int>(ldc);
    const T one = 1, beta = begin_with(addends, m, n, c, ldc) ? T(1) : T(0);
    gemm(&tb, &ta, &columns, &rows, &inner, &one, b, &row_b, a, &row_a, &beta, c, &row_c);
}

}  // namespace

void multiply(As as_a, As as_b, std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t lda,
              const float* b, std::int64_t ldb, const Addends<float>& addends, float* c, std::int64_t ldc)
{
    if (const auto product = tile_product()) {
        const auto strided = [](As as, const float* data, std::int64_t row) {
            return as == As::Given ? StridedMatrix{data, row, 1} : StridedMatrix{data, 1, row};
        };
        product(m, n, k, strided(as_a, a, lda), strided(as_b, b, ldb), addends, c, ldc);
        return;
    }
    multiply_by_blas(as_a, as_b, m, n, k, a, lda, b, ldb, addends, c, ldc);
}

void multiply(As as_a, As as_b, std::int64_t m, std::int64_t n, std::int64_t k, const double* a, std::int64_t lda,
              const double* b, std::int64_t ldb, const Addends<double>& addends, double* c, std::int64_t ldc)
{
    multiply_by_blas(as_a, as_b, m, n, k, a, lda, b, ldb, addends, c, ldc);
}

}  // namespace meshard
