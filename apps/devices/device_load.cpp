// SPDX-License-Identifier: Apache-2.0
#include "apps/devices/device_load.h"

#include "apps/console/text_table.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sys/resource.h>
#include <unistd.h>

namespace meshard {
namespace {

std::string bytes_text(double bytes)
{
    return meshard::bytes_text(static_cast<std::uint64_t>(std::max(0.0, bytes)));
}

/// Lists what the user can do: choose a memory mode that needs less, more ranks, fewer points.
std::vector<std::string> remedies(const DeviceLoad& load, const MemoryInUse& memory)
{
    std::vector<std::string> all;
    auto next = std::ranges::find(load.modes, load.memory);
    if (next != load.modes.end() && ++next != load.modes.end()) all.push_back(load.mode_option + *next);
    if (!load.rank_option.empty() && load.num_points > 0 && memory.total > 0) {
        const auto bytes = static_cast<double>(memory.peak) * static_cast<double>(load.num_ranks);
        const auto ranks = std::max(load.num_ranks + 1,
                                    static_cast<std::int64_t>(std::ceil(bytes / static_cast<double>(memory.total))));
        all.push_back(fmt::format("at least {} ranks ({}{})", ranks, load.rank_option, ranks));
    }
    if (!load.fewer_points.empty()) all.push_back(fmt::format("fewer points at once ({})", load.fewer_points));
    return all;
}

}  // namespace

MemoryInUse memory_in_use(const c10::Device& device)
{
    if (!device.is_cpu()) {
        try {
            auto* const allocator = c10::getDeviceAllocator(device.type());
            const auto stats = allocator->getDeviceStats(device.index());
            const auto& allocated =
                stats.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
            return {allocated.current, allocated.peak,
                    static_cast<std::int64_t>(allocator->getMemoryInfo(device.index()).second)};
        } catch (const c10::Error&) {
            return {};  // the accelerator keeps no statistics
        }
    }
    std::ifstream stream("/proc/self/statm");
    std::int64_t size = 0, resident = 0;
    stream >> size >> resident;
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto page = static_cast<std::int64_t>(sysconf(_SC_PAGESIZE));
    auto total = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * page;
    if (rlimit limit{}; getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur < static_cast<rlim_t>(total))
        total = static_cast<std::int64_t>(limit.rlim_cur);
    return {resident * page, static_cast<std::int64_t>(usage.ru_maxrss) * 1024, total};
}

std::string out_of_memory_text(const DeviceLoad& load, const MemoryInUse& memory)
{
    auto text = "out of memory: " + load.what;
    if (load.num_points > 0)
        text += fmt::format(", {} points{}", load.num_points, load.num_ranks > 1 ? " on this rank" : "");
    text += load.num_points > 0 ? ", does not fit into " : " does not fit into ";
    text += (memory.total > 0 ? fmt::format("the {} of ", bytes_text(static_cast<double>(memory.total))) : "") +
            load.device.str();
    // The work needs at least the memory that it had when the allocation failed.
    if (load.num_points > 0 && memory.peak > 0) {
        const auto taken = static_cast<double>(memory.peak);
        text += fmt::format(": {}it takes at least {} a point ({} before the memory ended)",
                            load.memory.empty() ? "" : fmt::format("with memory mode {} ", load.memory),
                            bytes_text(taken / static_cast<double>(load.num_points)), bytes_text(taken));
    }
    text += ".";
    const auto all = remedies(load, memory);
    for (std::size_t i = 0; i < all.size(); ++i)
        text += (i == 0 ? " Use " : i + 1 < all.size() ? ", " : " or ") + all[i];
    return all.empty() ? text : text + ".";
}

}  // namespace meshard
