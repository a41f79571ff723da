// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cuda/executor.h"

struct CUstream_st;

namespace meshard {

/// Where kernels take memory from for as long as they need it.
struct DeviceMemory {
    void* (*take)(std::size_t bytes, CUstream_st* stream);   ///< ready for what is queued on the stream from then on; never null
    void (*give)(void* memory);
};

/// Runs bodies as kernels that are queued on a stream. All pointers are the device's. Host code uses it without CUDA's headers, with the templates that
/// kernels.h names; their code is in kernels.cu. @throws std::runtime_error with CUDA's message if the device refuses
struct CudaExecutor {
    CUstream_st* stream = nullptr;   ///< null: the default one
    DeviceMemory memory{};

    template <class Body>
    void for_each(std::int64_t n, const Body& body) const;

    template <class T>
    Buffer<T> allocate(std::int64_t n) const;

    void exclusive_scan(std::int64_t* values, std::int64_t n) const;
};

}  // namespace meshard
