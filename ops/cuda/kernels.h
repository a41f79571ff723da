// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/cuda/cell_grid.h"
#include "ops/cuda/device_executor.h"
#include "ops/cuda/grid_order.h"
#include "ops/cuda/row_numbers.h"
#include "ops/cuda/row_packing.h"
#include "ops/cuda/segment_sweep.h"
#include "ops/cuda/slice_sweep.h"

namespace meshard {

// The kernels that are compiled for GPUs. Host code calls them like those of the host's executor; search_kernels.cu and
// slice_kernels.cu instantiate them.

#define MESHARD_ROW_KERNELS(EXTERN, Word)                                                                              \
    EXTERN template void pack_rows(const CudaExecutor&, const Word*, const std::int64_t*, std::int64_t, std::int64_t,  \
                                   Word*);                                                                             \
    EXTERN template void unpack_rows(const CudaExecutor&, const Word*, const std::int64_t*, std::int64_t,              \
                                     std::int64_t, Word*);

#define MESHARD_NUMBER_KERNELS(EXTERN, T)                                                                              \
    EXTERN template void add_packed_rows(const CudaExecutor&, const T*, const std::int64_t*, const std::int64_t*,      \
                                         std::int64_t, std::int64_t, T*);                                              \
    EXTERN template void sweep_segments(const CudaExecutor&, const T*, const std::int64_t*, std::int64_t,              \
                                        std::int64_t, SegmentSweep, T*, std::int64_t*);                                \
    EXTERN template class CellGrid<T, CudaExecutor>;                                                                   \
    EXTERN template void place_rows_in_box(const CudaExecutor&, const T*, std::int64_t, int, const double*, T*);       \
    EXTERN template void cells_in_grid_order(const CudaExecutor&, const T*, std::int64_t, const GridOrder&,            \
                                             std::int32_t*);                                                           \
    EXTERN template void count_in_grid_order(const CudaExecutor&, const OrderedPoints<T>&, const T*, std::int64_t,     \
                                             const GridOrder&, std::int64_t, std::int64_t*);                           \
    EXTERN template void fill_in_grid_order(const CudaExecutor&, const OrderedPoints<T>&, const T*, std::int64_t,      \
                                            const GridOrder&, std::int64_t, std::int64_t*, std::int32_t*, T*);         \
    EXTERN template void draw_numbers(const CudaExecutor&, const RowNumbers&, std::int64_t, std::int64_t,              \
                                      std::int64_t, T*);

#define MESHARD_SLICE_KERNELS(EXTERN)                                                                                  \
    EXTERN template void sum_exponentials(const CudaExecutor&, const SlicedPoints<double>&);                           \
    EXTERN template void add_to_slices(const CudaExecutor&, const SlicedPoints<double>&, const double*, double*);      \
    EXTERN template void bring_back_from_slices(const CudaExecutor&, const SlicedPoints<double>&, const double*,       \
                                                double*);                                                              \
    EXTERN template void slice_gradients(const CudaExecutor&, const SlicedPoints<double>&,                             \
                                         const SliceGradients<double>&, double*);

#define MESHARD_SEARCH_KERNELS(EXTERN)                                                                                 \
    MESHARD_ROW_KERNELS(EXTERN, std::uint8_t)                                                                          \
    MESHARD_ROW_KERNELS(EXTERN, std::uint16_t)                                                                         \
    MESHARD_ROW_KERNELS(EXTERN, std::uint32_t)                                                                         \
    MESHARD_ROW_KERNELS(EXTERN, std::uint64_t)                                                                         \
    MESHARD_NUMBER_KERNELS(EXTERN, float)                                                                              \
    MESHARD_NUMBER_KERNELS(EXTERN, double)

MESHARD_SEARCH_KERNELS(extern)
MESHARD_SLICE_KERNELS(extern)

}  // namespace meshard
