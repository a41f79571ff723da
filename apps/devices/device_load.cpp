// SPDX-License-Identifier: Apache-2.0
#include "apps/devices/device_load.h"

#include "apps/console/text_table.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <sys/resource.h>
#include <unistd.h>

namespace meshard {
namespace {

std::string bytes_text(double bytes)
{
    return meshard::bytes_text(static_cast<std::uint64_t>(std::max(0.0, bytes)));
}

double bytes_of(const ModeNeed& need, double points)
{
    return need.fixed_bytes + need.bytes_per_point * points;
}

/// The fewest ranks, more than there are, whose shares of the points fit; nothing if none do, because what every rank holds is too much.
std::optional<std::int64_t> enough_ranks(const DeviceLoad& load, const ModeNeed& need, double total)
{
    const auto room = total - need.fixed_bytes;
    if (!(room > 0) || !(need.bytes_per_point > 0)) return std::nullopt;
    const auto points = static_cast<double>(load.num_points) * static_cast<double>(load.num_ranks);
    return std::max(load.num_ranks + 1, static_cast<std::int64_t>(std::ceil(points * need.bytes_per_point / room)));
}

std::string ranks_text(const DeviceLoad& load, std::int64_t num_ranks)
{
    return std::to_string(num_ranks) + " ranks (" + load.rank_option + std::to_string(num_ranks) + ")";
}

/// What to do: a mode that needs less, more ranks, fewer points.
std::vector<std::string> remedies(const DeviceLoad& load, const MemoryInUse& memory, const ModeNeed& own)
{
    std::vector<std::string> all;
    const auto points = static_cast<double>(load.num_points), total = static_cast<double>(memory.total);
    auto next = std::ranges::find(load.modes, load.memory, &ModeNeed::name);
    if (next != load.modes.end()) ++next;
    const auto fits = [&](const ModeNeed& need) { return need.bytes_per_point == 0 || total == 0 || bytes_of(need, points) <= total; };
    if (const auto chosen = std::find_if(next, load.modes.end(), fits); chosen != load.modes.end()) {
        all.push_back(load.mode_option + chosen->name);
        if (chosen->bytes_per_point > 0)
            all.back() += " (about " + bytes_text(chosen->bytes_per_point) + " a point, " + bytes_text(bytes_of(*chosen, points)) + " in all)";
    } else if (next != load.modes.end() && !load.rank_option.empty()) {
        const auto& least = load.modes.back();
        if (const auto ranks = enough_ranks(load, least, total))
            all.push_back(load.mode_option + least.name + " on " + ranks_text(load, *ranks) + ", about " + bytes_text(least.bytes_per_point) + " a point");
    }
    if (!load.rank_option.empty() && load.num_points > 0 && total > 0) {
        if (const auto ranks = enough_ranks(load, own, total)) all.push_back("at least " + ranks_text(load, *ranks));
    }
    if (!load.fewer_points.empty()) all.push_back("fewer points at once (" + load.fewer_points + ")");
    return all;
}

}  // namespace

MemoryInUse memory_in_use(const c10::Device& device)
{
    if (!device.is_cpu()) {
        try {
            auto* const allocator = c10::getDeviceAllocator(device.type());
            const auto stats = allocator->getDeviceStats(device.index());
            const auto& allocated = stats.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
            return {allocated.current, allocated.peak, static_cast<std::int64_t>(allocator->getMemoryInfo(device.index()).second)};
        } catch (const c10::Error&) {
            return {};  // an accelerator that does not count
        }
    }
    std::ifstream stream("/proc/self/statm");
    std::int64_t size = 0, resident = 0;
    stream >> size >> resident;
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto page = static_cast<std::int64_t>(sysconf(_SC_PAGESIZE));
    return {resident * page, static_cast<std::int64_t>(usage.ru_maxrss) * 1024, static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * page};
}

std::string out_of_memory_text(const DeviceLoad& load, const MemoryInUse& memory)
{
    auto text = "out of memory: " + load.what;
    if (load.num_points > 0) text += ", " + std::to_string(load.num_points) + " points" + (load.num_ranks > 1 ? " on this rank" : "");
    text += load.num_points > 0 ? ", does not fit into " : " does not fit into ";
    text += (memory.total > 0 ? "the " + bytes_text(static_cast<double>(memory.total)) + " of " : std::string()) + load.device.str();
    // By count where that is known; what was taken before the memory ended is the least that it can be.
    ModeNeed own{load.memory};
    if (const auto counted = std::ranges::find(load.modes, load.memory, &ModeNeed::name); counted != load.modes.end()) own = *counted;
    if (load.num_points > 0 && memory.peak > 0) {
        const auto measured = static_cast<double>(memory.peak) / static_cast<double>(load.num_points);
        text += ": " + (load.memory.empty() ? std::string() : "with memory mode " + load.memory + " ") + "it takes at least " + bytes_text(measured) +
                " a point (" + bytes_text(static_cast<double>(memory.peak)) + " before the memory ended";
        if (own.bytes_per_point > 0) text += "; by count " + bytes_text(own.bytes_per_point) + " and " + bytes_text(own.fixed_bytes) + " besides";
        text += ")";
        const bool is_too_low = own.bytes_per_point < measured, is_too_high = memory.total > 0 && own.fixed_bytes >= static_cast<double>(memory.total);
        if (is_too_low || is_too_high) own = {load.memory, measured, 0};
    }
    text += ".";
    const auto all = remedies(load, memory, own);
    for (std::size_t i = 0; i < all.size(); ++i) text += (i == 0 ? " Use " : i + 1 < all.size() ? ", " : " or ") + all[i];
    return all.empty() ? text : text + ".";
}

}  // namespace meshard
