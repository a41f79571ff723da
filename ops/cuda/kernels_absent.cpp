// SPDX-License-Identifier: Apache-2.0
// Replaces the kernels in builds for CPUs, so that code that calls them links. They are never called: `on_cuda` throws
// before.
#include "ops/cuda/kernels.h"
#include "ops/cuda/tile_kernels.h"

#include <stdexcept>

#pragma GCC diagnostic ignored "-Wunused-parameter"

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

MESHARD_TILE_FUNCTIONS(CudaExecutor, { no_kernels(); })

MESHARD_SEARCH_KERNELS()
MESHARD_SLICE_KERNELS()

}  // namespace meshard
