// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <dlfcn.h>
#include <functional>
#include <map>
#include <string>

namespace meshard {

/// What a device of the stand-in has been asked to do.
struct StandinCounters {
    std::int64_t launches = 0;
    std::int64_t device_to_host = 0, device_to_host_bytes = 0;
    std::int64_t host_to_device = 0, host_to_device_bytes = 0;
    std::int64_t syncs = 0;                                        ///< the host waited for the device
    std::map<std::string, std::int64_t> launched, copied, synced;  ///< by operator
};

/// What the stand-in's library offers to tests, which are not linked with it: it is there where a program was started
/// with it (LD_PRELOAD).
struct Standin {
    StandinCounters (*counters)(int device);
    void (*reset_counters)(int device);
    /// The tensor's memory as a tensor of the CPU, for what plays a part of the device, such as a transport.
    at::Tensor (*as_host)(const at::Tensor& tensor);
    /// From now on, or no longer, kernels that add with atomics on GPUs give sums of another order in each call.
    void (*add_in_any_order)(bool on);
};

/// Null where the library is not loaded.
inline const Standin* loaded_standin()
{
    using Find = const Standin* (*)();
    static const auto find = reinterpret_cast<Find>(dlsym(RTLD_DEFAULT, "meshard_standin"));
    return find ? find() : nullptr;
}

}  // namespace meshard
