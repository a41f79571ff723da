// SPDX-License-Identifier: Apache-2.0
// Replaces the kernels in builds for CPUs, so that code that calls them links. They are never called: `on_cuda` throws
// before.
#include "ops/cuda/kernels.h"
#include "ops/cuda/tile_kernels.h"

#include <stdexcept>

namespace meshard {
namespace {

[[noreturn]] void no_kernels()
{
    throw std::logic_error("this build of meshard has no kernels for GPUs");
}

}  // namespace

template <class Body>
void CudaExecutor::for_each(std::int64_t, const Body&) const
{
    no_kernels();
}

template <class T>
Buffer<T> CudaExecutor::allocate(std::int64_t) const
{
    no_kernels();
}

void CudaExecutor::exclusive_scan(std::int64_t*, std::int64_t) const
{
    no_kernels();
}

void sum_in_slices(const CudaExecutor&, const TilePoints&, const TileRows&, bool, float*)
{
    no_kernels();
}

void find_log_sums(const CudaExecutor&, const TilePoints&)
{
    no_kernels();
}

void find_point_means(const CudaExecutor&, const TilePoints&, const TileRows&, float*)
{
    no_kernels();
}

void deslice_rows(const CudaExecutor&, const TilePoints&, const float*, const TileRows&)
{
    no_kernels();
}

void find_slice_gradients(const CudaExecutor&, const TilePoints&, const TileGradients&, float*)
{
    no_kernels();
}

void round_totals(const CudaExecutor&, TileMath, const float*, const float*, const float*, float*, std::int64_t, int)
{
    no_kernels();
}

void normalize_rows(const CudaExecutor&, const NormalizedRows&)
{
    no_kernels();
}

void normalize_rows_backward(const CudaExecutor&, const NormalizedRowsGradient&)
{
    no_kernels();
}

void gelu_rows(const CudaExecutor&, RowType, const void*, void*, std::int64_t)
{
    no_kernels();
}

void gelu_rows_backward(const CudaExecutor&, const GeluGradient&)
{
    no_kernels();
}

void sum_rows(const CudaExecutor&, RowType, const void*, void*, std::int64_t, std::int64_t)
{
    no_kernels();
}

void fold_weights(const CudaExecutor&, const FoldedWeights&)
{
    no_kernels();
}

void unfold_weights(const CudaExecutor&, const UnfoldedWeights&)
{
    no_kernels();
}

void scale_slices(const CudaExecutor&, const SliceScaling&, float*, float*)
{
    no_kernels();
}

void scale_slices_backward(const CudaExecutor&, const SliceScaling&, const SliceScalingGradient&)
{
    no_kernels();
}

void find_slice_means(const CudaExecutor&, const SliceTotals&)
{
    no_kernels();
}

void slice_means_backward(const CudaExecutor&, const SliceTotals&, const float*, float*)
{
    no_kernels();
}

bool tokens_fit(const CudaExecutor&, int, int)
{
    no_kernels();
}

void attend_tokens(const CudaExecutor&, const TokenAttention&, float*)
{
    no_kernels();
}

void attend_tokens_backward(const CudaExecutor&, const TokenAttention&, const TokenAttentionGradient&)
{
    no_kernels();
}

MESHARD_SEARCH_KERNELS()
MESHARD_SLICE_KERNELS()

}  // namespace meshard
