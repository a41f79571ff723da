// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace meshard {

/// From now on this process takes the memory of LibTorch's large CPU tensors (1 MiB and more) in mappings of their own, on huge pages where the system has
/// them, and keeps those of freed tensors for the next of their size: a training step pays for its memory once. Never is more mapped than an eighth above
/// what tensors at one time needed, so that what sizes no longer asked for leave behind goes back to the system, and none is lost between blocks, as it is
/// when the C library keeps it. May be called again; there is no way back.
void keep_tensor_memory();

/// Of the tensors that `keep_tensor_memory` serves.
struct TensorMemory {
    std::int64_t in_use = 0;     ///< bytes
    std::int64_t kept = 0;       ///< free, for tensors to come
    std::int64_t peak = 0;       ///< the most that was ever in use
};
TensorMemory tensor_memory();

}  // namespace meshard
