// SPDX-License-Identifier: Apache-2.0
// Implementation of CudaExecutor; for NVIDIA's compiler only.
#pragma once

#include "ops/cuda/device_executor.h"

#include <cuda_runtime.h>
#include <stdexcept>
#include <string>

namespace meshard {

inline void check_cuda(cudaError_t error, const char* what)
{
    if (error != cudaSuccess)
        throw std::runtime_error(std::string("CUDA: ") + what + " failed: " + cudaGetErrorString(error));
}

constexpr int kThreads = 256;  // a block

template <class Body>
__global__ void run_body(std::int64_t n, Body body)
{
    const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) body(i);
}

/// Exclusive scan within each block of values; `sums[b]` becomes the total of block b.
template <class Int>
__global__ void scan_blocks(Int* values, Int n, Int* sums)
{
    __shared__ Int shared[kThreads];
    const Int i = static_cast<Int>(blockIdx.x) * kThreads + threadIdx.x;
    const Int own = i < n ? values[i] : 0;
    shared[threadIdx.x] = own;
    for (int step = 1; step < kThreads; step *= 2) {
        __syncthreads();
        const Int before = threadIdx.x >= step ? shared[threadIdx.x - step] : 0;
        __syncthreads();
        shared[threadIdx.x] += before;
    }
    if (i < n) values[i] = shared[threadIdx.x] - own;
    if (threadIdx.x == kThreads - 1) sums[blockIdx.x] = shared[threadIdx.x];
}

template <class Body>
void CudaExecutor::for_each(std::int64_t n, const Body& body) const
{
    if (n == 0) return;
    const auto blocks = (n + kThreads - 1) / kThreads;
    run_body<<<static_cast<unsigned>(blocks < 65535 ? blocks : 65535), kThreads, 0, stream>>>(n, body);
    check_cuda(cudaGetLastError(), "a kernel's start");
}

template <class T>
Buffer<T> CudaExecutor::allocate(std::int64_t n) const
{
    return {
        std::shared_ptr<T>(static_cast<T*>(memory.take(static_cast<std::size_t>(n) * sizeof(T), stream)), memory.give)};
}

inline void CudaExecutor::exclusive_scan(std::int64_t* values, std::int64_t n) const
{
    if (n == 0) return;
    const auto blocks = (n + kThreads - 1) / kThreads;
    const auto sums = allocate<std::int64_t>(blocks);
    scan_blocks<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(values, n, sums.data());
    check_cuda(cudaGetLastError(), "a scan");
    if (blocks == 1) return;
    exclusive_scan(sums.data(), blocks);
    const auto* before = sums.data();
    for_each(n, [=] __device__(std::int64_t i) { values[i] += before[i / kThreads]; });
}

}  // namespace meshard
