// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "ops/cuda/cell_grid.h"
#include "ops/cuda/segment_sweep.h"

struct CUstream_st;

namespace meshard {

// The kernels of this folder for host code, without CUDA's headers. Pointers are the device's; work is queued on the stream, null being the default
// one. All throw std::runtime_error with CUDA's message if the device refuses.

/// As `pack_rows` and `unpack_rows`; rows of `row_bytes` bytes, moved in the widest words that these allow.
void pack_rows_on_device(const void* rows, const std::int64_t* index, std::int64_t n, std::int64_t row_bytes, void* packed, CUstream_st* stream);
void unpack_rows_on_device(const void* packed, const std::int64_t* index, std::int64_t n, std::int64_t row_bytes, void* rows, CUstream_st* stream);

/// As `add_packed_rows`, of float or double.
template <class T>
void add_packed_rows_on_device(const T* packed, const std::int64_t* offsets, const std::int64_t* places, std::int64_t num_rows, std::int64_t channels, T* rows,
                               CUstream_st* stream);

/// As `sweep_segments`, of float or double.
template <class T>
void sweep_segments_on_device(const T* values, const std::int64_t* offsets, std::int64_t num_rows, std::int64_t channels, SegmentSweep kind, T* results,
                              std::int64_t* arguments, CUstream_st* stream);

/// As CellGrid, of float or double.
template <class T>
class DeviceCellGrid {
public:
    DeviceCellGrid(const T* points, std::int64_t n, const GridShape& shape, CUstream_st* stream);
    ~DeviceCellGrid();

    void count(const T* queries, std::int64_t m, T radius, std::int64_t max_neighbors, std::int64_t* offsets) const;
    void fill(const T* queries, std::int64_t m, T radius, const std::int64_t* offsets, std::int32_t* ids, T* distances) const;

private:
    struct Impl;
    std::unique_ptr<const Impl> impl_;
};

}  // namespace meshard
