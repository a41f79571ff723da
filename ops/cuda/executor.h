// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

// Functions that run on the host and, compiled by NVIDIA's compiler, on a GPU.
#ifdef __CUDACC__
#define MESHARD_HOST_DEVICE __host__ __device__
#else
#define MESHARD_HOST_DEVICE
#endif

namespace meshard {

// The kernels of this folder are templates over an executor, which runs a body for every index and allocates memory. The same code runs in a loop of the host,
// as the reference in tests (HostExecutor), and as kernels of a GPU (CudaExecutor, cuda_executor.h). C++17, without LibTorch.
//
//   for_each(n, body)              body(i) for i in [0, n), in any order or in parallel; complete before the next call's work begins
//   allocate<T>(n)                 a Buffer of n values, not initialised
//   exclusive_scan(values, n)      values[i] becomes the sum of values[0], ..., values[i - 1]; int64

/// Memory of an executor. Freed with the last copy.
template <class T>
struct Buffer {
    std::shared_ptr<T> memory;
    T* data() const { return memory.get(); }
};

/// Runs all bodies in order, on the calling thread.
struct HostExecutor {
    template <class Body>
    void for_each(std::int64_t n, const Body& body) const
    {
        for (std::int64_t i = 0; i < n; ++i) body(i);
    }

    template <class T>
    Buffer<T> allocate(std::int64_t n) const
    {
        return {std::shared_ptr<T>(new T[static_cast<std::size_t>(n)], std::default_delete<T[]>())};
    }

    void exclusive_scan(std::int64_t* values, std::int64_t n) const
    {
        std::int64_t sum = 0;
        for (std::int64_t i = 0; i < n; ++i) {
            const auto value = values[i];
            values[i] = sum;
            sum += value;
        }
    }
};

/// Adds one and returns the old value; atomic on a GPU.
MESHARD_HOST_DEVICE inline std::int64_t fetch_increment(std::int64_t& value)
{
#ifdef __CUDA_ARCH__
    return static_cast<std::int64_t>(atomicAdd(reinterpret_cast<unsigned long long*>(&value), 1ull));
#else
    return value++;
#endif
}

}  // namespace meshard
