// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>  // defines __GLIBC__
#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace meshard {

/// The C library keeps freed blocks of up to 1 GiB in the process, instead of giving large ones back to the system, which pages them in again for whoever asks
/// next: a tenth of a short run, and up to half of a training step.
inline void keep_freed_blocks()
{
#ifdef __GLIBC__
    constexpr int kMaximum = 1 << 30;
    mallopt(M_MMAP_THRESHOLD, kMaximum);
    mallopt(M_TRIM_THRESHOLD, kMaximum);
#endif
}

}  // namespace meshard
