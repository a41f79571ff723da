// SPDX-License-Identifier: Apache-2.0
#include "sharding/memory/gpus.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <fmt/core.h>
#include <torch/csrc/distributed/c10d/NCCLUtils.hpp>

namespace meshard {

std::vector<Gpu> visible_gpus()
{
    std::vector<Gpu> gpus;
    for (c10::DeviceIndex i = 0; i < c10::cuda::device_count(); ++i) {
        const auto* properties = at::cuda::getDeviceProperties(i);
        gpus.push_back({properties->name,
                        fmt::format("{}.{}", properties->major, properties->minor),
                        static_cast<std::int64_t>(properties->totalGlobalMem),
                        0,
                        {}});
    }
    return gpus;
}

std::vector<Gpu> gpus_with_memory()
{
    auto gpus = visible_gpus();
    for (std::size_t i = 0; i < gpus.size(); ++i) {
        const auto here = static_cast<c10::DeviceIndex>(i);
        gpus[i].free_bytes =
            static_cast<std::int64_t>(c10::getDeviceAllocator(c10::DeviceType::CUDA)->getMemoryInfo(here).first);
        for (std::size_t other = 0; other < gpus.size(); ++other) {
            if (other != i && at::cuda::canDeviceAccessPeer(here, static_cast<c10::DeviceIndex>(other)))
                gpus[i].peers.push_back(static_cast<int>(other));
        }
    }
    return gpus;
}

std::vector<std::pair<std::string, std::string>> gpu_library_versions()
{
    const auto runtime = at::detail::getCUDAHooks().versionCUDART();
    return {{"CUDA", fmt::format("{}.{}", runtime / 1000, runtime % 1000 / 10)}, {"NCCL", c10d::getNcclVersion()}};
}

}  // namespace meshard
