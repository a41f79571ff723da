// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/cuda/kernels.h"
#include "partition/error.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

namespace meshard {

#ifdef MESHARD_WITH_CUDA
/// Calls `work` with what runs kernels on the device of a tensor of a GPU, queued on LibTorch's current stream there and with LibTorch's memory.
void on_gpu(const at::Tensor& tensor, const std::function<void(const CudaExecutor&)>& work);
#else
/// Without kernels. `work` is not compiled. @throws Error
template <class Work>
void on_gpu(const at::Tensor& tensor, const Work&)
{
    throw Error("A tensor lies on " + tensor.device().str() +
                ", and this build of meshard has no kernels for GPUs. Configure with -DMESHARD_WITH_CUDA=ON, or move "
                "the tensor to the CPU.");
}
#endif

}  // namespace meshard
