// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// A CUDA GPU that this process can use.
struct Gpu {
    std::string name;
    std::string capability;  ///< such as `9.0`
    std::int64_t total_bytes = 0;
    std::int64_t free_bytes = 0;
    std::vector<int> peers;  ///< indices of the GPUs whose memory it can read and write
};

/// All GPUs, sorted by index; none in a build for CPUs. Queries the free memory of each, which allocates some of it.
std::vector<Gpu> gpus_with_memory();

/// All GPUs without their memory and peers, so that no memory is allocated on them.
std::vector<Gpu> visible_gpus();

/// Versions of the CUDA runtime and of NCCL that LibTorch uses, by name; none in a build for CPUs.
std::vector<std::pair<std::string, std::string>> gpu_library_versions();

}  // namespace meshard
