// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/cuda/kernels.h"

#include <ATen/core/Tensor.h>

#include <functional>

namespace meshard {

/// Calls `work` with a HostExecutor while host code may read and write the memory of a device. `work` may call
/// LibTorch's operators.
using HostAccess = std::function<void(const at::Device& device, const std::function<void(const HostExecutor&)>& work)>;

/// Makes the host run the kernels for tensors of this type of device, which is neither a CPU nor a CUDA GPU. For
/// accelerators that tests make.
void run_kernels_on_host(c10::DeviceType type, HostAccess access);

/// Returns whether a device is a CUDA GPU, or of a type for which the host runs the kernels.
bool has_kernels(const at::Device& device);

/// Calls `work` with the access that `run_kernels_on_host` has registered for the device's type. @throws Error if there
/// is none: this build has no kernels for the device
void with_host_access(const at::Device& device, const std::function<void(const HostExecutor&)>& work);

/// Calls `work` with an executor that queues kernels on LibTorch's current stream of a CUDA GPU, with LibTorch's
/// memory. @throws Error in a build for CPUs
void on_cuda(const at::Tensor& tensor, const std::function<void(const CudaExecutor&)>& work);

/// Calls `work` with the executor for a tensor's device, which is not a CPU. @throws Error if this build has no kernels
/// for the device
template <class Work>
void on_gpu(const at::Tensor& tensor, const Work& work)
{
    if (tensor.is_cuda()) return on_cuda(tensor, work);
    with_host_access(tensor.device(), [&](const HostExecutor& executor) { work(executor); });
}

/// `on_gpu` that also accepts CPU tensors, for which the host runs the kernels.
template <class Work>
void by_kernels(const at::Tensor& tensor, const Work& work)
{
    if (tensor.is_cpu())
        work(HostExecutor());
    else
        on_gpu(tensor, work);
}

}  // namespace meshard
