// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/cuda/device_executor.h"

#include <gtest/gtest.h>

#include <cuda_runtime_api.h>
#include <vector>

namespace meshard {

/// A copy of some values on the device.
template <class T>
class OnDevice {
public:
    explicit OnDevice(const std::vector<T>& values) : size_(values.size())
    {
        EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), (size_ + 1) * sizeof(T)), cudaSuccess);
        EXPECT_EQ(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
    }
    ~OnDevice() { cudaFree(data_); }
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;

    T* data() const { return data_; }
    std::vector<T> values() const
    {
        std::vector<T> values(size_);
        EXPECT_EQ(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
        return values;
    }

private:
    T* data_ = nullptr;
    std::size_t size_;
};

inline void* take_memory(std::size_t bytes, CUstream_st*)
{
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, bytes + 1), cudaSuccess);
    return memory;
}

inline const CudaExecutor kGpu{nullptr, {take_memory, [](void* memory) { cudaFree(memory); }}};

/// Tests that are skipped where there is no GPU.
class OnGpu : public ::testing::Test {
protected:
    void SetUp() override
    {
        int devices = 0;
        const auto error = cudaGetDeviceCount(&devices);
        if (error != cudaSuccess || devices == 0) GTEST_SKIP() << "no GPU: " << cudaGetErrorString(error);
    }
};

}  // namespace meshard
