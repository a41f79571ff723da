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

/// Work that did not fit into the memory of its device.
class DeviceMemoryError : public Error {
public:
    using Error::Error;
};

/// Bytes of a device that this process uses; of the CPU its resident memory.
struct MemoryInUse {
    std::int64_t now = 0;
    std::int64_t peak = 0;   ///< the most that ever was, or since the peak was set back
    std::int64_t total = 0;  ///< of the device, used by whomever; 0 if it does not tell
};

MemoryInUse memory_in_use(const c10::Device& device);

/// Work on a device, for the case that it does not fit.
struct DeviceLoad {
    c10::Device device = c10::kCPU;
    std::string what = {};                ///< such as `a training step of case run_3`
    std::int64_t num_points = 0;          ///< of this rank; 0: not known
    std::int64_t num_ranks = 1;           ///< that share the points
    std::string memory = {};              ///< its memory mode; empty where it has none
    std::string mode_option = {};         ///< what stands before the name of a mode to choose it, such as `--memory `
    std::vector<std::string> modes = {};  ///< in which this work can be done, the fastest first
    std::string rank_option = {};         ///< what stands before a number of ranks to choose it, such as `--nproc `; empty if it is one rank's work
    std::string fewer_points = {};        ///< how it takes fewer points, such as `data.sampling_resolution`; empty if it cannot
};

/// One sentence on what did not fit and how many bytes a point it took, and one on which mode takes less or how many ranks would do.
std::string out_of_memory_text(const DeviceLoad& load, const MemoryInUse& memory);

/// Does work on a device. @throws DeviceMemoryError with `out_of_memory_text` of what `load` gives, where the device's memory ends
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
