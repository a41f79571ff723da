// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace meshard {

/// From this call on, LibTorch's large CPU tensors (128 KiB and more) are allocated as memory mappings, on huge pages
/// where the system has them. Mappings of freed tensors are cached for later tensors of the same size, so that only the
/// first training step pays for page faults, and the heap does not fragment (an aligned block of it is not taken again
/// for another one of its size). At most an eighth more is mapped than the peak that tensors have used at one time;
/// beyond that, cached mappings are unmapped. Further calls have no effect; it cannot be undone.
void keep_tensor_memory();

/// Memory that `keep_tensor_memory` has allocated for tensors.
struct TensorMemory {
    std::int64_t in_use = 0;  ///< bytes
    std::int64_t kept = 0;    ///< bytes cached for later tensors
    std::int64_t peak = 0;    ///< the largest `in_use` so far, bytes
};
TensorMemory tensor_memory();

}  // namespace meshard
