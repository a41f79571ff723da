// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>  // defines __GLIBC__
#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace meshard {

/// Makes the C library keep freed blocks of up to 1 GiB in the process, instead of returning large ones to the system.
/// Paging them in again at the next allocation took a tenth of the time of a short run, and up to half of a training
/// step.
inline void keep_freed_blocks()
{
#ifdef __GLIBC__
    constexpr int kMaximum = 1 << 30;
    mallopt(M_MMAP_THRESHOLD, kMaximum);
    mallopt(M_TRIM_THRESHOLD, kMaximum);
#endif
}

}  // namespace meshard
