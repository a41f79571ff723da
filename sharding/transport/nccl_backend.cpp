// SPDX-License-Identifier: Apache-2.0
#include "sharding/transport/nccl_backend.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGraphsUtils.cuh>
#include <fmt/core.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <cstdlib>

namespace meshard {
namespace {

constexpr const char* kErrorHandling = "TORCH_NCCL_ASYNC_ERROR_HANDLING";

/// Includes NCCL_HOSTID, by which NCCL distinguishes machines: with different values ranks may share a GPU, in tests.
std::string identity_of_gpu(const at::Device& device)
{
    const char* const host = std::getenv("NCCL_HOSTID");
    std::string text = host ? host + std::string(" ") : "";
    for (const unsigned char byte : at::cuda::getDeviceProperties(device.index())->uuid.bytes)
        text += fmt::format("{:02x}", byte);
    return text;
}

c10::intrusive_ptr<c10d::Backend> connect_nccl(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                               std::chrono::milliseconds limit)
{
    setenv(kErrorHandling, std::to_string(c10d::CleanUpOnly).c_str(), /*overwrite=*/0);
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = limit;
    return c10::make_intrusive<c10d::ProcessGroupNCCL>(std::move(store), rank, size, options);
}

}  // namespace

DeviceTransport nccl_transport()
{
    return {.name = "nccl",
            .why_not = [] { return std::string(at::cuda::is_available() ? "" : "no GPU is seen by this process"); },
            .identity = identity_of_gpu,
            .connect = connect_nccl,
            .is_recording =
                [] { return at::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None; }};
}

}  // namespace meshard
