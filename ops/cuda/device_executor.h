// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/cuda/executor.h"

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace meshard {

/// Allocator of temporary device memory for kernels.
struct DeviceMemory {
    /// Allocates memory for work that is queued on the stream later; never returns null.
    void* (*take)(std::size_t bytes, CUstream_st* stream);
    void (*give)(void* memory);
};

/// Runs bodies as kernels that are queued on a stream. All pointers are to device memory. Host code can use it without
/// CUDA's headers, with the templates that kernels.h declares and kernels.cu instantiates. @throws std::runtime_error
/// with CUDA's message if a launch or an allocation fails
struct CudaExecutor {
    CUstream_st* stream = nullptr;  ///< null: the default stream
    DeviceMemory memory{};

    template <class Body>
    void for_each(std::int64_t n, const Body& body) const;

    template <class T>
    Buffer<T> allocate(std::int64_t n) const;

    void exclusive_scan(std::int64_t* values, std::int64_t n) const;
};

}  // namespace meshard
