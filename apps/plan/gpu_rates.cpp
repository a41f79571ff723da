// SPDX-License-Identifier: Apache-2.0
#include "apps/plan/gpu_rates.h"

#include "partition/error.h"
#include "partition/nearest_name.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <string>
#include <vector>

namespace meshard {
namespace {

// Shares of what is published that programs reach. Products: bfloat16 of 8192 x 8192 gives 798 of an H100's 989 TFLOP/s; memory: a copy 3.0 of its 3.35 TB/s.
constexpr double kProductShare = 0.8, kMemoryShare = 0.9, kLinkShare = 0.7;
constexpr double kUsableMemory = 0.92;     // beside the context of CUDA, NCCL's buffers and gaps between tensors
constexpr double kLaunchSeconds = 2.5e-6;  // from kernel to kernel of one stream, where the host is ahead: 2 to 3 us
constexpr double kLatencyOfHosts = 10e-6;  // more for each doubling of the hosts: a tree

// Dense rates; data sheets that give them with sparsity say twice as much. Exponentials: 16 a clock and multiprocessor (CUDA C programming guide, table of
// arithmetic instructions, compute capabilities 8.0 to 10.0); of an H100 3.9e12 a second (Shah et al. 2024, FlashAttention-3, section 1).
constexpr std::array<GpuFigures, 4> kGpus{{
    // NVIDIA H200 Tensor Core GPU data sheet, SXM: 141 GB at 4.8 TB/s, 989 and 495 TFLOP/s (1979 and 989 with sparsity), 67; NVLink 900 GB/s both ways.
    {"h200", "H200 SXM", 67e12, 494.5e12, 989e12, 141e9, 4.8e12, 3.9e12, 450e9},
    // NVIDIA H100 Tensor Core GPU data sheet, SXM5: 80 GB at 3.35 TB/s, else the same.
    {"h100", "H100 SXM5", 67e12, 494.5e12, 989e12, 80e9, 3.35e12, 3.9e12, 450e9},
    // NVIDIA Blackwell architecture technical brief, HGX B200 at 1000 W: 2.25 and 1.1 PFLOP/s, 80 TFLOP/s, 8 TB/s; 180 GB (HGX B200: 1.44 TB of eight);
    // NVLink 1.8 TB/s both ways. Exponentials: 148 multiprocessors at 1.85 GHz.
    {"b200", "B200 SXM", 80e12, 1100e12, 2250e12, 180e9, 8e12, 4.4e12, 900e9},
    // NVIDIA A100 Tensor Core GPU data sheet, SXM of 80 GB: 312, 156 and 19.5 TFLOP/s, 2.039 TB/s; NVLink 600 GB/s both ways. Exponentials: 108 at 1.41 GHz.
    {"a100", "A100 SXM 80 GB", 19.5e12, 156e12, 312e12, 80e9, 2.039e12, 2.4e12, 300e9},
}};

// Latencies of an all-reduce of a few bytes by NCCL are estimates, not published: 20 us inside a host, 40 us between two.
constexpr std::array<Link, 4> kLinks{{
    {"nvlink", "NVLink", 0, 20e-6},
    {"pcie", "PCIe 5.0 x16", 64e9, 25e-6},                 // PCI-SIG: 32 GT/s, 16 lanes, one way
    {"ib", "InfiniBand NDR 400 Gb/s a GPU", 50e9, 40e-6},  // NVIDIA DGX H100 data sheet: eight ConnectX-7 of 400 Gb/s for eight GPUs
    {"ethernet", "Ethernet 100 Gb/s a GPU", 12.5e9, 60e-6},
}};

template <class Each, std::size_t N>
const Each& find(const std::array<Each, N>& all, std::string_view name, const std::string& what, const std::string& more)
{
    std::string wanted(name);
    std::transform(wanted.begin(), wanted.end(), wanted.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    std::vector<std::string> names;
    std::string list;
    for (const auto& one : all) {
        if (one.name == wanted) return one;
        names.emplace_back(one.name);
        list += (list.empty() ? "" : ", ") + names.back();
    }
    if (!more.empty()) names.push_back(more);
    const auto nearest = nearest_name(wanted, names);
    throw InvalidInput("bench plan: there is no " + what + " '" + std::string(name) + "'; known are " + list + (more.empty() ? "" : " and " + more) + "." +
                       (nearest.empty() ? "" : " Did you mean '" + nearest + "'?"));
}

}  // namespace

const GpuFigures& find_gpu(std::string_view name)
{
    return find(kGpus, name, "device", "here");
}

const Link& find_link(std::string_view name)
{
    return find(kLinks, name, "link", "");
}

std::int64_t num_hosts(std::int64_t num_gpus, std::int64_t gpus_per_host)
{
    return (num_gpus + gpus_per_host - 1) / gpus_per_host;
}

double GpuRates::product_flops() const
{
    switch (precision_) {
    case GpuPrecision::Float32:
        return gpu_.float32_flops;
    case GpuPrecision::Tf32:
        return gpu_.tf32_flops;
    case GpuPrecision::BFloat16:
        break;
    }
    return gpu_.bfloat16_flops;
}

double GpuRates::seconds(const Operation& operation) const
{
    using Kind = Operation::Kind;
    const bool has_exponentials = operation.kind == Kind::Softmax || operation.kind == Kind::Exponentials;
    const auto special = has_exponentials ? operation.numbers : operation.kind == Kind::Noise ? 2 * operation.numbers : 0.0;
    return std::max({operation.flop() / (kProductShare * product_flops()), operation.bytes / (kMemoryShare * gpu_.memory_rate),
                     special / (kProductShare * gpu_.exponentials)}) +
           operation.launches * kLaunchSeconds;
}

double GpuRates::seconds_of_small_calls(double count) const
{
    return count * kLaunchSeconds;
}

double GpuRates::seconds(const StepMessage& message, std::int64_t num_ranks) const
{
    const auto inside = std::min(num_ranks, gpus_per_host_), hosts = num_hosts(num_ranks, gpus_per_host_);
    const auto rate = kLinkShare * (inside_.rate > 0 ? inside_.rate : gpu_.nvlink_rate);
    const auto share = [](std::int64_t n) { return static_cast<double>(n - 1) / static_cast<double>(n); };
    const auto bytes = static_cast<double>(message.bytes);
    auto seconds = inside_.latency;
    if (hosts > 1) seconds = std::max(seconds, beyond_.latency + kLatencyOfHosts * (std::log2(static_cast<double>(hosts)) - 1));
    if (message.operation != "all_reduce") {  // each byte once; those that come from beyond the host last
        seconds += bytes / (hosts > 1 ? kLinkShare * beyond_.rate : rate);
    } else {
        if (inside > 1) seconds += 2 * share(inside) * bytes / rate;
        if (hosts > 1) seconds += 2 * share(hosts) * bytes / static_cast<double>(inside) / (kLinkShare * beyond_.rate);
    }
    return static_cast<double>(message.times) * seconds;
}

double GpuRates::memory_bytes() const
{
    return kUsableMemory * gpu_.memory_bytes;
}

}  // namespace meshard
