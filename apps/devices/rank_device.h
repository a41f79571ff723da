// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/transport/launch.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace meshard {

/// The meaning of `--device` and of the key `device`, for help texts.
inline constexpr const char* kDeviceMeaning =
    "where ranks compute: auto (GPUs if there are some, else CPUs), cpu, cuda, or the name of another accelerator";

/// Returns the device on which a rank computes. The ranks of a machine take the visible devices of the type in turn.
/// `auto` is the accelerator that the environment variable MESHARD_TEST_DEVICE names, if it is there, else CUDA if a
/// GPU is visible, else the CPU.
/// @param name   auto, cpu, cuda, or the name of a registered accelerator
/// @throws UsageError for another name, or if this process sees no such device
at::Device device_of_rank(const std::string& name, const LaunchInfo& info);

/// Returns the device's type, for CUDA with the product's name: `cpu`, `cuda (NVIDIA H200)`.
std::string device_name(const at::Device& device);

/// Returns how many ranks share the device that most ranks share; for the CPU, how many share a host. Collective over
/// all ranks.
std::int64_t ranks_a_device(const World& world, const RankGroup& all);
std::int64_t ranks_a_device(const at::Device& device, const RankGroup& all);

/// Describes where a run computes and what carries its messages, e.g.
/// `device cuda (NVIDIA H200), transport nccl, 1 rank a device`. Collective over all ranks.
std::string device_text(World& world, const RankGroup& all);

/// Returns the free memory of a device in bytes; for the CPU, or a device that does not report it, all memory of the
/// machine or what the process may map (`ulimit -v`).
std::int64_t memory_of(const at::Device& device);

/// Returns how many bytes of memory this process may still take: what the machine can provide, or less if a control
/// group (a container, a job) or `ulimit -v` limits it.
std::int64_t free_memory();

/// Returns the number behind `word` in a file of the kernel, or without a word the number at its beginning. Empty if
/// there is none.
std::optional<std::int64_t> number_in_file(const std::filesystem::path& file, std::string_view word = {});

}  // namespace meshard
