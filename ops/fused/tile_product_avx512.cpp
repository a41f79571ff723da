// SPDX-License-Identifier: Apache-2.0
// Compiled for AVX-512. No template of the standard library is instantiated here, so that none of its code can be
// linked into a program for an older processor.
#include "ops/fused/tile_product.h"

namespace meshard {
namespace {

// Blocks of the result are kept in registers: 12 rows of two vectors take 24 of the 32. A panel of b, as wide as a
// block, stays in the first-level cache while it is multiplied by all rows of a (K. Goto and R. van de Geijn, Anatomy
// of high-performance matrix multiplication, 2008, section 5).
constexpr std::int64_t kLanes = 16, kMaxRows = 12, kMaxInner = 256;
typedef float Vector __attribute__((vector_size(64), aligned(4), may_alias));

Vector load(const float* from)
{
    return *reinterpret_cast<const Vector*>(from);
}

/// Writes the first columns of a block's sums, (num_rows, width), to c. Not inlined, so that the code of the blocks
/// stays short.
__attribute__((noinline)) void write_part(const float* sums, std::int64_t num_rows, std::int64_t width,
                                          const Addends<float>& addends, std::int64_t columns, float* c,
                                          std::int64_t row_c)
{
    for (std::int64_t r = 0; r < num_rows; ++r) {
        for (std::int64_t j = 0; j < columns; ++j) {
            float sum = sums[r * width + j];
            if (addends.to_rows) sum += addends.to_rows[r];
            if (addends.to_columns) sum += addends.to_columns[j];
            if (addends.to_all) sum += addends.to_all[r * addends.row_stride + j];
            c[r * row_c + j] = sum;
        }
    }
}

/// The product of a, (rows, k), and a panel, (k, kVectors * kLanes); the first `columns` columns are written to c.
template <int kRows, int kVectors, bool kByColumn>
void multiply_block(const float* a, std::int64_t stride, std::int64_t k, const float* panel, std::int64_t width,
                    const Addends<float>& addends, std::int64_t columns, float* c, std::int64_t row_c)
{
    // Addends, which may be large, are added last, so that rounding errors are those of the products alone.
    Vector sums[kRows][kVectors] = {};
    // Pointers to every third row of a, hidden from the compiler by `asm`: otherwise it would keep the offset of each
    // row, for which there are too few registers, and move some to vector registers, from which they can be read only
    // when the sums before are complete.
    constexpr int kGroup = 3, kGroups = kByColumn ? 0 : (kRows + kGroup - 1) / kGroup;
    const float* rows_of_a[kGroups + 1];
    for (int g = 0; g < kGroups; ++g) {
        rows_of_a[g] = a + g * kGroup * stride;
        asm("" : "+r"(rows_of_a[g]));
    }
    for (std::int64_t i = 0; i < k; ++i) {
        Vector b[kVectors];
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) b[v] = load(panel + i * width + v * kLanes);
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r) {
            const float x = kByColumn ? a[i * stride + r] : rows_of_a[r / kGroup][r % kGroup * stride];
#pragma GCC unroll 2
            for (int v = 0; v < kVectors; ++v) sums[r][v] += x * b[v];
        }
#pragma GCC unroll 4
        for (int g = 0; g < kGroups; ++g) ++rows_of_a[g];
    }
    if (columns < kVectors * kLanes) {
        float rows[kRows * kVectors * kLanes];
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
            for (int v = 0; v < kVectors; ++v)
                *reinterpret_cast<Vector*>(rows + (r * kVectors + v) * kLanes) = sums[r][v];
        }
        write_part(rows, kRows, kVectors * kLanes, addends, columns, c, row_c);
        return;
    }
    if (addends.to_rows) {
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
            for (int v = 0; v < kVectors; ++v) sums[r][v] += addends.to_rows[r];
        }
    }
    if (addends.to_columns) {
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) {
            const auto addend = load(addends.to_columns + v * kLanes);
#pragma GCC unroll 12
            for (int r = 0; r < kRows; ++r) sums[r][v] += addend;
        }
    }
    if (addends.to_all) {
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
            for (int v = 0; v < kVectors; ++v) sums[r][v] += load(addends.to_all + r * addends.row_stride + v * kLanes);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) *reinterpret_cast<Vector*>(c + r * row_c + v * kLanes) = sums[r][v];
    }
}

using Block = void (*)(const float* a, std::int64_t stride, std::int64_t k, const float* panel, std::int64_t width,
                       const Addends<float>& addends, std::int64_t columns, float* c, std::int64_t row_c);

template <int kVectors, bool kByColumn>
Block block_of(std::int64_t rows)
{
    static constexpr Block blocks[] = {
        multiply_block<1, kVectors, kByColumn>,  multiply_block<2, kVectors, kByColumn>,
        multiply_block<3, kVectors, kByColumn>,  multiply_block<4, kVectors, kByColumn>,
        multiply_block<5, kVectors, kByColumn>,  multiply_block<6, kVectors, kByColumn>,
        multiply_block<7, kVectors, kByColumn>,  multiply_block<8, kVectors, kByColumn>,
        multiply_block<9, kVectors, kByColumn>,  multiply_block<10, kVectors, kByColumn>,
        multiply_block<11, kVectors, kByColumn>, multiply_block<12, kVectors, kByColumn>};
    return blocks[rows - 1];
}

/// Copies `columns` columns of b, (k, columns) with column stride 1, to a panel, (k, width), padded with zeros.
void pack_rows(StridedMatrix b, std::int64_t k, std::int64_t columns, std::int64_t width, float* panel)
{
    for (std::int64_t i = 0; i < k; ++i) {
        const float* from = b.data + i * b.row_stride;
        float* to = panel + i * width;
        if (columns == width) {
            for (std::int64_t j = 0; j < width; j += kLanes) *reinterpret_cast<Vector*>(to + j) = load(from + j);
            continue;
        }
        for (std::int64_t j = 0; j < width; ++j) to[j] = j < columns ? from[j] : 0;
    }
}

/// Transposes a block of 16 x 16: each column of `from` is contiguous in memory, each row of `to`.
void transpose_block(const float* from, std::int64_t column, float* to, std::int64_t width)
{
    Vector a[16], b[16];
#pragma GCC unroll 16
    for (int c = 0; c < 16; ++c) a[c] = load(from + c * column);
#pragma GCC unroll 8
    for (int c = 0; c < 16; c += 2) {  // exchanges within pairs of columns
        b[c] = __builtin_shufflevector(a[c], a[c + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
        b[c + 1] = __builtin_shufflevector(a[c], a[c + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 16; c += 4) {  // exchanges within groups of four: quarter q of a[c + r] is row 4 q + r
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
            a[c + 2 * h] = __builtin_shufflevector(b[c + h], b[c + 2 + h], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12,
                                                   13, 28, 29);
            a[c + 2 * h + 1] = __builtin_shufflevector(b[c + h], b[c + 2 + h], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26,
                                                       27, 14, 15, 30, 31);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {  // combines quarters of four columns to whole rows
        const Vector low01 =
            __builtin_shufflevector(a[r], a[4 + r], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
        const Vector high01 =
            __builtin_shufflevector(a[r], a[4 + r], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
        const Vector low23 =
            __builtin_shufflevector(a[8 + r], a[12 + r], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
        const Vector high23 =
            __builtin_shufflevector(a[8 + r], a[12 + r], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
        *reinterpret_cast<Vector*>(to + r * width) =
            __builtin_shufflevector(low01, low23, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
        *reinterpret_cast<Vector*>(to + (4 + r) * width) =
            __builtin_shufflevector(low01, low23, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
        *reinterpret_cast<Vector*>(to + (8 + r) * width) =
            __builtin_shufflevector(high01, high23, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
        *reinterpret_cast<Vector*>(to + (12 + r) * width) =
            __builtin_shufflevector(high01, high23, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    }
}

/// `pack_rows` for b with row stride 1.
void pack_columns(StridedMatrix b, std::int64_t k, std::int64_t columns, std::int64_t width, float* panel)
{
    const auto blocks = k / kLanes * kLanes;
    std::int64_t j = 0;
    for (; j + kLanes <= columns; j += kLanes) {
        for (std::int64_t i = 0; i < blocks; i += kLanes)
            transpose_block(b.data + i + j * b.column_stride, b.column_stride, panel + i * width + j, width);
    }
    for (std::int64_t i = 0; i < k; ++i) {
        for (auto c = i < blocks ? j : 0; c < width; ++c)
            panel[i * width + c] = c < columns ? b.data[i + c * b.column_stride] : 0;
    }
}

void pack(StridedMatrix b, std::int64_t k, std::int64_t columns, std::int64_t width, float* panel)
{
    if (b.column_stride == 1)
        pack_rows(b, k, columns, width, panel);
    else
        pack_columns(b, k, columns, width, panel);
}

}  // namespace

void avx512_tile_product(std::int64_t m, std::int64_t n, std::int64_t k, StridedMatrix a, StridedMatrix b,
                         const Addends<float>& addends, float* c, std::int64_t row_c)
{
    alignas(64) float buffer[kMaxInner * 2 * kLanes];
    const bool by_column = a.column_stride != 1;
    const auto stride = by_column ? a.column_stride : a.row_stride;
    const auto num_blocks = (m + kMaxRows - 1) / kMaxRows;  // blocks have equal heights, up to one row
    for (std::int64_t inner = 0; inner == 0 || inner < k; inner += kMaxInner) {
        const bool is_first = inner == 0;
        const auto depth = k - inner < kMaxInner ? k - inner : kMaxInner;
        for (std::int64_t j = 0; j < n; j += 2 * kLanes) {
            const auto columns = n - j < 2 * kLanes ? n - j : 2 * kLanes;
            const bool is_wide = columns > kLanes;
            const auto full = is_wide ? 2 * kLanes : kLanes;
            const StridedMatrix here{b.data + inner * b.row_stride + j * b.column_stride, b.row_stride,
                                     b.column_stride};
            // For short products packing would cost more than it saves.
            const bool in_place = b.column_stride == 1 && columns == full && num_blocks * depth < 128;
            if (!in_place) pack(here, depth, columns, full, buffer);
            const float* panel = in_place ? here.data : buffer;
            const auto width = in_place ? b.row_stride : full;
            for (std::int64_t i = 0; i < num_blocks; ++i) {
                const auto first = i * m / num_blocks, rows = (i + 1) * m / num_blocks - first;
                const auto block = is_wide ? (by_column ? block_of<2, true>(rows) : block_of<2, false>(rows))
                                           : (by_column ? block_of<1, true>(rows) : block_of<1, false>(rows));
                float* to = c + first * row_c + j;
                Addends<float> here;
                here.to_rows = is_first && addends.to_rows ? addends.to_rows + first : nullptr;
                here.to_columns = is_first && addends.to_columns ? addends.to_columns + j : nullptr;
                here.to_all = !is_first        ? to
                              : addends.to_all ? addends.to_all + first * addends.row_stride + j
                                               : nullptr;
                here.row_stride = is_first ? addends.row_stride : row_c;
                block(a.data + first * a.row_stride + inner * a.column_stride, stride, depth, panel, width, here,
                      columns, to, row_c);
            }
        }
    }
}

}  // namespace meshard
