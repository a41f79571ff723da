// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/transport/launch.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace meshard {

/// Meaning of `--device` and of the key `device`, for help texts.
inline constexpr const char* kDeviceMeaning = "where ranks compute: auto (GPUs if there are some, else CPUs), cpu, cuda, or the name of another accelerator";

/// The device on which a rank computes: of the devices of a type that it sees, the one of its number on this machine, starting over where there are fewer.
/// `auto` is the accelerator that the environment variable MESHARD_TEST_DEVICE names, if it is there, else CUDA where a GPU is seen, else the CPU.
/// @param name   auto, cpu, cuda, or the name of a registered accelerator
/// @throws UsageError for another name, or if this process sees no such device
at::Device device_of_rank(const std::string& name, const LaunchInfo& info);

/// Its type, with the name of the product where CUDA tells it: `cpu`, `cuda (NVIDIA H200)`.
std::string device_name(const at::Device& device);

/// Ranks on the device that most ranks share. Collective over all ranks.
std::int64_t ranks_a_device(const World& world, const RankGroup& all);
std::int64_t ranks_a_device(const at::Device& device, const RankGroup& all);  ///< of the CPU: ranks on a host

/// Where a run computes and what carries its messages, such as `device cuda (NVIDIA H200), transport nccl, 1 rank a device`. Collective over all ranks.
std::string device_text(World& world, const RankGroup& all);

/// Bytes of memory: free on a device; for the CPU, or a device that does not tell, all that the machine has, or the process may
/// map (`ulimit -v`).
std::int64_t memory_of(const at::Device& device);

/// Bytes of memory that this process may still take: what the machine has left or may take back, less where a control group (a container, a job) or
/// `ulimit -v` says so.
std::int64_t free_memory();

/// The number behind a word in a file of the kernel's, or with which the file begins. Empty if there is none.
std::optional<std::int64_t> number_in_file(const std::filesystem::path& file, std::string_view word = {});

}  // namespace meshard
