// SPDX-License-Identifier: Apache-2.0
#include "apps/devices/rank_device.h"

#include "apps/console/console.h"
#include "partition/nearest_name.h"
#include "sharding/memory/gpus.h"
#include "sharding/transport/device_transport.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/StringUtil.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

namespace meshard {
namespace {

constexpr const char* kTestDevice = "MESHARD_TEST_DEVICE";

int num_devices(c10::DeviceType type)
{
    return c10::impl::hasDeviceGuardImpl(type) ? c10::impl::getDeviceGuardImpl(type)->deviceCount() : 0;
}

/// Returns the name of the accelerator that is registered with LibTorch; empty if there is none.
std::string registered_accelerator()
{
    const bool is_there = c10::is_privateuse1_backend_registered() && num_devices(c10::DeviceType::PrivateUse1) > 0;
    return is_there ? c10::get_privateuse1_backend(/*lower_case=*/true) : "";
}

/// Finds the device type that has this name. @throws UsageError that says why this process cannot use it
c10::DeviceType type_named(const std::string& name)
{
    if (name == "cpu") return c10::DeviceType::CPU;
    if (name == "cuda") {
        const auto why = why_no_transport(c10::DeviceType::CUDA);
        if (why.empty()) return c10::DeviceType::CUDA;
        throw UsageError("device cuda: {}. Leave it out for CPUs; `meshard info --devices` says what is missing.", why);
    }
    const auto accelerator = registered_accelerator();
    if (!accelerator.empty() && name == accelerator) return c10::DeviceType::PrivateUse1;
    std::vector<std::string> known{"auto", "cpu", "cuda"};
    if (!accelerator.empty()) known.push_back(accelerator);
    const auto nearest = name == "gpu" ? "cuda" : nearest_name(name, known);
    throw UsageError("device '{}' is not one of {}{}", name, c10::Join(", ", known),
                     nearest.empty() ? "." : fmt::format(". Did you mean '{}'?", nearest));
}

}  // namespace

at::Device device_of_rank(const std::string& name, const LaunchInfo& info)
{
    auto type = c10::DeviceType::CPU;
    if (name == "auto") {
        const char* const wanted = std::getenv(kTestDevice);
        const auto accelerator = registered_accelerator();
        if (wanted && !accelerator.empty() && wanted == accelerator)
            type = c10::DeviceType::PrivateUse1;
        else if (why_no_transport(c10::DeviceType::CUDA).empty())
            type = c10::DeviceType::CUDA;
    } else {
        type = type_named(name);
    }
    if (type == c10::DeviceType::CPU) return at::kCPU;
    return {type, static_cast<c10::DeviceIndex>(info.local_rank % num_devices(type))};
}

std::int64_t ranks_a_device(const World& world, const RankGroup& all)
{
    return ranks_a_device(world.device(), all);
}

std::int64_t ranks_a_device(const at::Device& device, const RankGroup& all)
{
    if (all.size() == 1) return 1;
    const auto of_ranks =
        all.all_gather_integers(static_cast<std::int64_t>(std::hash<std::string>()(identity_of(device))));
    std::int64_t most = 0;
    for (const auto rank : of_ranks) most = std::max(most, std::ranges::count(of_ranks, rank));
    return most;
}

std::string device_name(const at::Device& device)
{
    const auto type = c10::DeviceTypeName(device.type(), /*lower_case=*/true);
    return device.is_cuda() ? fmt::format("{} ({})", type, visible_gpus()[device.index()].name) : type;
}

std::string device_text(World& world, const RankGroup& all)
{
    const auto device = world.device();
    const auto text = fmt::format("device {}, transport {}", device_name(device), world.carrier(device).text());
    if (device.is_cpu()) return text;
    const auto ranks = ranks_a_device(world, all);
    return fmt::format("{}, {} {} a device", text, ranks, ranks == 1 ? "rank" : "ranks");
}

/// What LibTorch has freed of a device's memory and keeps; 0 if the accelerator has no statistics.
static std::int64_t kept_for_later(const at::Device& device)
{
    constexpr auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    try {
        const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
        return stats.reserved_bytes[all].current - stats.allocated_bytes[all].current;
    } catch (const c10::Error&) {
        return 0;
    }
}

std::int64_t memory_of(const at::Device& device)
{
    const auto of_machine = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
    if (device.is_cpu()) {
        rlimit limit{};
        const bool is_limited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
        return is_limited ? std::min(of_machine, static_cast<std::int64_t>(limit.rlim_cur)) : of_machine;
    }
    try {
        return static_cast<std::int64_t>(c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).first) +
               kept_for_later(device);
    } catch (const c10::Error&) {
        return of_machine;  // the accelerator does not report its memory
    }
}

std::optional<std::int64_t> number_in_file(const std::filesystem::path& file, std::string_view word)
{
    std::ifstream stream(file);
    std::string found;
    while (!word.empty() && found != word && stream >> found) continue;
    std::int64_t number = 0;
    if (found != word || !(stream >> number)) return std::nullopt;
    return number;
}

std::int64_t free_memory()
{
    auto free = memory_of(at::kCPU);
    if (const auto kilobytes = number_in_file("/proc/meminfo", "MemAvailable:"))
        free = std::min(free, 1024 * *kilobytes);
    // Control groups of version 1 or 2 may limit the memory. A container sees its own group's files at the root, the
    // machine sees them in the group's folder.
    std::ifstream groups("/proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {
        const auto last = line.rfind(':');
        const bool is_second = line.starts_with("0::");
        if (last == std::string::npos || (!is_second && line.find(":memory:") == std::string::npos)) continue;
        const std::filesystem::path root = is_second ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
        for (const auto& folder : {root, root / line.substr(last + 1).erase(0, 1)}) {
            const auto limit = number_in_file(folder / (is_second ? "memory.max" : "memory.limit_in_bytes"));
            const auto used = number_in_file(folder / (is_second ? "memory.current" : "memory.usage_in_bytes"));
            if (limit && used)
                free = std::min(free,
                                *limit - *used + number_in_file(folder / "memory.stat", "inactive_file").value_or(0));
        }
    }
    return std::max<std::int64_t>(free, 0);
}

}  // namespace meshard
