// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/rank_timing.h"

#include "apps/console/repeated_times.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>

namespace meshard {

void wait_for_device(const at::Device& device)
{
    if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

Seconds seconds_of(const std::function<void()>& work)
{
    const auto cpu = cpu_seconds();
    const auto start = std::chrono::steady_clock::now();
    work();
    return {seconds_since(start), cpu_seconds() - cpu};
}

double seconds_together(const DeviceMesh& mesh, const std::function<void()>& work)
{
    mesh.all().barrier();
    const auto start = std::chrono::steady_clock::now();
    work();
    auto seconds = at::full({1}, seconds_since(start), at::kDouble);
    mesh.all().all_reduce(seconds, Reduction::Max);
    return seconds.item<double>();
}

}  // namespace meshard
