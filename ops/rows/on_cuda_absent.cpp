// SPDX-License-Identifier: Apache-2.0
#include "ops/rows/on_gpu.h"

namespace meshard {

void on_cuda(const at::Tensor& tensor, const std::function<void(const CudaExecutor&)>&)
{
    with_host_access(tensor.device(), [](const HostExecutor&) {});  // throws, since the host has no access to CUDA GPUs
}

}  // namespace meshard
