// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/kernels.h"

#include "ops/cuda/cuda_executor.h"
#include "ops/cuda/row_packing.h"

namespace meshard {
namespace {

/// Calls `f` with null of the widest type that divides the rows.
template <class F>
void with_word(std::int64_t row_bytes, F&& f)
{
    if (row_bytes % 8 == 0) f(static_cast<std::uint64_t*>(nullptr));
    else if (row_bytes % 4 == 0) f(static_cast<std::uint32_t*>(nullptr));
    else if (row_bytes % 2 == 0) f(static_cast<std::uint16_t*>(nullptr));
    else f(static_cast<std::uint8_t*>(nullptr));
}

}  // namespace

void pack_rows_on_device(const void* rows, const std::int64_t* index, std::int64_t n, std::int64_t row_bytes, void* packed, CUstream_st* stream)
{
    with_word(row_bytes, [&](auto* word) {
        using Word = std::remove_pointer_t<decltype(word)>;
        pack_rows(CudaExecutor{stream}, static_cast<const Word*>(rows), index, n, row_bytes / static_cast<std::int64_t>(sizeof(Word)), static_cast<Word*>(packed));
    });
}

void unpack_rows_on_device(const void* packed, const std::int64_t* index, std::int64_t n, std::int64_t row_bytes, void* rows, CUstream_st* stream)
{
    with_word(row_bytes, [&](auto* word) {
        using Word = std::remove_pointer_t<decltype(word)>;
        unpack_rows(CudaExecutor{stream}, static_cast<const Word*>(packed), index, n, row_bytes / static_cast<std::int64_t>(sizeof(Word)), static_cast<Word*>(rows));
    });
}

template <class T>
void add_packed_rows_on_device(const T* packed, const std::int64_t* offsets, const std::int64_t* places, std::int64_t num_rows, std::int64_t channels, T* rows,
                               CUstream_st* stream)
{
    add_packed_rows(CudaExecutor{stream}, packed, offsets, places, num_rows, channels, rows);
}

template <class T>
void sweep_segments_on_device(const T* values, const std::int64_t* offsets, std::int64_t num_rows, std::int64_t channels, SegmentSweep kind, T* results,
                              std::int64_t* arguments, CUstream_st* stream)
{
    sweep_segments(CudaExecutor{stream}, values, offsets, num_rows, channels, kind, results, arguments);
}

template <class T>
struct DeviceCellGrid<T>::Impl {
    CellGrid<T, CudaExecutor> grid;
};

template <class T>
DeviceCellGrid<T>::DeviceCellGrid(const T* points, std::int64_t n, const GridShape& shape, CUstream_st* stream)
    : impl_(new Impl{CellGrid<T, CudaExecutor>(CudaExecutor{stream}, points, n, shape)})
{
}

template <class T>
DeviceCellGrid<T>::~DeviceCellGrid() = default;

template <class T>
void DeviceCellGrid<T>::count(const T* queries, std::int64_t m, T radius, std::int64_t max_neighbors, std::int64_t* offsets) const
{
    impl_->grid.count(queries, m, radius, max_neighbors, offsets);
}

template <class T>
void DeviceCellGrid<T>::fill(const T* queries, std::int64_t m, T radius, const std::int64_t* offsets, std::int32_t* ids, T* distances) const
{
    impl_->grid.fill(queries, m, radius, offsets, ids, distances);
}

template void add_packed_rows_on_device(const float*, const std::int64_t*, const std::int64_t*, std::int64_t, std::int64_t, float*, CUstream_st*);
template void add_packed_rows_on_device(const double*, const std::int64_t*, const std::int64_t*, std::int64_t, std::int64_t, double*, CUstream_st*);
template void sweep_segments_on_device(const float*, const std::int64_t*, std::int64_t, std::int64_t, SegmentSweep, float*, std::int64_t*, CUstream_st*);
template void sweep_segments_on_device(const double*, const std::int64_t*, std::int64_t, std::int64_t, SegmentSweep, double*, std::int64_t*, CUstream_st*);
template class DeviceCellGrid<float>;
template class DeviceCellGrid<double>;

}  // namespace meshard
