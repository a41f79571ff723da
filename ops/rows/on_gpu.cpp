// SPDX-License-Identifier: Apache-2.0
#include "ops/rows/on_gpu.h"

#include "partition/error.h"

#include <map>
#include <mutex>
#include <utility>

namespace meshard {
namespace {

struct HostAccesses {
    std::mutex mutex;
    std::map<c10::DeviceType, HostAccess> by_type;
};

HostAccesses& host_accesses()
{
    static HostAccesses all;
    return all;
}

/// Returns an empty function if the host does not run the kernels for this type.
HostAccess access_to(c10::DeviceType type)
{
    const std::lock_guard lock(host_accesses().mutex);
    const auto found = host_accesses().by_type.find(type);
    return found == host_accesses().by_type.end() ? HostAccess() : found->second;
}

}  // namespace

void run_kernels_on_host(c10::DeviceType type, HostAccess access)
{
    const std::lock_guard lock(host_accesses().mutex);
    host_accesses().by_type[type] = std::move(access);
}

bool has_kernels(const at::Device& device)
{
    return device.is_cuda() || access_to(device.type());
}

void with_host_access(const at::Device& device, const std::function<void(const HostExecutor&)>& work)
{
    if (const auto access = access_to(device.type())) return access(device, work);
    throw Error("A tensor lies on {}, and this build of meshard has no kernels for GPUs. Configure with "
                "-DMESHARD_WITH_CUDA=ON, or move "
                "the tensor to the CPU.",
                device.str());
}

}  // namespace meshard
