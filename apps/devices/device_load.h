// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/error.h"

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace meshard {

/// A device has too little memory for the work.
class DeviceMemoryError : public Error {
public:
    using Error::Error;
};

/// Memory of a device that this process uses, in bytes; for the CPU, this process's resident memory.
struct MemoryInUse {
    std::int64_t now = 0;
    std::int64_t peak = 0;   ///< highest since the start, or since the peak was reset
    std::int64_t total = 0;  ///< all memory of the device; 0 if it is not known
};

MemoryInUse memory_in_use(const c10::Device& device);

/// Describes work on a device for the message that its memory is too small.
struct DeviceLoad {
    c10::Device device = c10::kCPU;
    std::string what = {};                ///< what the work is, e.g. `a training step of case run_3`
    std::int64_t num_points = 0;          ///< points of this rank; 0 if they are not known
    std::int64_t num_ranks = 1;           ///< ranks that share the points
    std::string memory = {};              ///< the memory mode in use; empty if there is none
    std::string mode_option = {};         ///< text that chooses a mode before its name, e.g. `--memory `
    std::vector<std::string> modes = {};  ///< possible memory modes, fastest first
    std::string rank_option = {};         ///< text before a number of ranks, e.g. `--nproc `; empty for one rank's work
    std::string fewer_points = {};        ///< setting that limits the points; empty if there is none
};

/// Returns one sentence on what did not fit and how many bytes a point it took, and one on which memory mode needs less
/// or how many ranks are enough.
std::string out_of_memory_text(const DeviceLoad& load, const MemoryInUse& memory);

/// Runs `work` and returns its result.
/// @throws DeviceMemoryError with `out_of_memory_text` for what `load` returns, if the device's memory is exhausted
template <class Work>
auto within_memory(const std::function<DeviceLoad()>& load, const Work& work)
{
    try {
        return work();
    } catch (const c10::OutOfMemoryError&) {
        const auto of_work = load();
        throw DeviceMemoryError(out_of_memory_text(of_work, memory_in_use(of_work.device)));
    }
}

}  // namespace meshard
