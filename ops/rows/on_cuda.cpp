// SPDX-License-Identifier: Apache-2.0
#include "ops/rows/on_gpu.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

namespace meshard {
namespace {

void* take(std::size_t bytes, CUstream_st* stream)
{
    return c10::cuda::CUDACachingAllocator::raw_alloc_with_stream(bytes, stream);
}

void give(void* memory)
{
    c10::cuda::CUDACachingAllocator::raw_delete(memory);
}

}  // namespace

void on_cuda(const at::Tensor& tensor, const std::function<void(const CudaExecutor&)>& work)
{
    const c10::cuda::CUDAGuard guard(tensor.device());
    work(CudaExecutor{c10::cuda::getCurrentCUDAStream(tensor.device().index()).stream(), {take, give}});
}

}  // namespace meshard
