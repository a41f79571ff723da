// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/cuda/kernels.h"

#include <ATen/core/Tensor.h>

#include <functional>

namespace meshard {

/// Calls `work` with a HostExecutor while host code may read and write the memory of a device. `work` may call operators of LibTorch.
using HostAccess = std::function<void(const at::Device& device, const std::function<void(const HostExecutor&)>& work)>;

/// From now on the host runs the kernels for tensors of this type of device, which is neither a CPU nor a GPU of CUDA. For accelerators that tests make.
void run_kernels_on_host(c10::DeviceType type, HostAccess access);

/// Whether a device is a GPU of CUDA, or of a type for which the host runs the kernels.
bool has_kernels(const at::Device& device);

/// Calls `work` as `run_kernels_on_host` was told for the device's type. @throws Error if it was told nothing: this build has no kernels for the device
void with_host_access(const at::Device& device, const std::function<void(const HostExecutor&)>& work);

/// The kernels of a GPU of CUDA, queued on LibTorch's current stream there and with LibTorch's memory. @throws Error in a build for CPUs
void on_cuda(const at::Tensor& tensor, const std::function<void(const CudaExecutor&)>& work);

/// Calls `work` with what runs kernels on the device of a tensor, which is no CPU tensor. @throws Error if this build has no kernels for the device
template <class Work>
void on_gpu(const at::Tensor& tensor, const Work& work)
{
    if (tensor.is_cuda()) return on_cuda(tensor, work);
    with_host_access(tensor.device(), [&](const HostExecutor& executor) { work(executor); });
}

/// The same for tensors of the CPU, too, where the host runs the kernels.
template <class Work>
void by_kernels(const at::Tensor& tensor, const Work& work)
{
    if (tensor.is_cpu())
        work(HostExecutor());
    else
        on_gpu(tensor, work);
}

}  // namespace meshard
