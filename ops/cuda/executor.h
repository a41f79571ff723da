// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

// Marks functions that run on the host and, compiled by NVIDIA's compiler, on a GPU.
#ifdef __CUDACC__
#define MESHARD_HOST_DEVICE __host__ __device__
#else
#define MESHARD_HOST_DEVICE
#endif

namespace meshard {

// The kernels of this folder are templates over an executor, which runs a body for every index and allocates memory.
// The same code runs in a loop on the host, as the reference in tests (HostExecutor), and as kernels of a GPU
// (CudaExecutor, cuda_executor.h). C++17, without LibTorch.
//
//   for_each(n, body)              body(i) for i in [0, n), in any order or in parallel
//   allocate<T>(n)                 a Buffer of n values, not initialised
//   exclusive_scan(values, n)      values[i] becomes the sum of values[0], ..., values[i - 1]; int64
//
// All bodies of a call have ended before the next call's work begins.

/// Memory of an executor, freed with the last copy.
template <class T>
struct Buffer {
    std::shared_ptr<T> memory;
    T* data() const { return memory.get(); }
};

/// The launches of a HostExecutor, in order, and the memory that they use, so that they can be repeated.
struct HostRecord {
    std::vector<std::function<void()>> launches;
    std::vector<std::shared_ptr<void>> memory;
};

/// How the host runs kernels of tiles. Tests use several warps, pairs of heads and small tables to cover what a GPU
/// does.
struct HostForm {
    int warps = 1, team = 1, parts = 2, table_rows = 0;  ///< table_rows 0: all
};

/// Runs all bodies in order, on the calling thread. With a `record` (a stand-in for a device graph) it records the
/// launches; if a counter is given, it counts them.
struct HostExecutor {
    HostRecord* record = nullptr;
    std::int64_t* num_launches = nullptr;
    HostForm form = {};

    template <class Body>
    void for_each(std::int64_t n, const Body& body) const
    {
        launch([=] {
            for (std::int64_t i = 0; i < n; ++i) body(i);
        });
    }

    template <class T>
    Buffer<T> allocate(std::int64_t n) const
    {
        const std::shared_ptr<T> memory(new T[static_cast<std::size_t>(n)], std::default_delete<T[]>());
        if (record != nullptr) record->memory.push_back(memory);
        return {memory};
    }

    void exclusive_scan(std::int64_t* values, std::int64_t n) const
    {
        launch([=] {
            std::int64_t sum = 0;
            for (std::int64_t i = 0; i < n; ++i) {
                const auto value = values[i];
                values[i] = sum;
                sum += value;
            }
        });
    }

private:
    template <class Launch>
    void launch(const Launch& work) const
    {
        work();
        if (num_launches != nullptr) ++*num_launches;
        if (record != nullptr) record->launches.push_back(work);
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
