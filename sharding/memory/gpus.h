// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// A GPU of CUDA that this process sees.
struct Gpu {
    std::string name;
    std::string capability;  ///< such as `9.0`
    std::int64_t total_bytes = 0;
    std::int64_t free_bytes = 0;
    std::vector<int> peers;  ///< numbers of the GPUs whose memory it can read and write
};

/// In their order; none in a build for CPUs. Asks each for its free memory, which takes some of it.
std::vector<Gpu> gpus_with_memory();

/// The same without their memory and peers, which leaves them untouched.
std::vector<Gpu> visible_gpus();

/// Versions of the CUDA runtime and of NCCL that LibTorch uses, by name; none in a build for CPUs.
std::vector<std::pair<std::string, std::string>> gpu_library_versions();

}  // namespace meshard
