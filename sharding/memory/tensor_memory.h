// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace meshard {

/// From now on this process allocates LibTorch's large CPU tensors (1 MiB and more) as memory mappings of their own, on huge pages where the system has them,
/// and caches the mappings of freed tensors for later tensors of the same size: only the first training step pays for the memory. At most an eighth more is
/// mapped than the peak that tensors have used at one time; beyond that, cached mappings go back to the system. Nothing is lost to fragmentation, as it is in
/// the C library's heap. May be called again; it cannot be undone.
void keep_tensor_memory();

/// Memory that `keep_tensor_memory` has allocated for tensors.
struct TensorMemory {
    std::int64_t in_use = 0;  ///< bytes
    std::int64_t kept = 0;    ///< bytes cached for later tensors
    std::int64_t peak = 0;    ///< the largest `in_use` so far, bytes
};
TensorMemory tensor_memory();

}  // namespace meshard
