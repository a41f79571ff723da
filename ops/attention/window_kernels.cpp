// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/window_kernels.h"

#include "ops/attention/window_kernels_body.h"

#include <atomic>

namespace meshard {
namespace {

constexpr int kBaseline = 0, kAvx2 = 1, kAvx512 = 2;
std::atomic<int> allowed_level{kAvx512};

int level_of_processor()
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return kAvx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return kAvx2;
#endif
    return kBaseline;
}

}  // namespace

#if defined(__x86_64__)
template <class T>
WindowKernels<T> avx2_window_kernels();
template <class T>
WindowKernels<T> avx512_window_kernels();
#endif

template <class T>
const WindowKernels<T>& window_kernels()
{
    static const int level = level_of_processor();
    static const WindowKernels<T> baseline = window_kernels_here<T>();
#if defined(__x86_64__)
    static const WindowKernels<T> avx2 = avx2_window_kernels<T>(), avx512 = avx512_window_kernels<T>();
    const int allowed = allowed_level;
    if (level >= kAvx512 && allowed >= kAvx512) return avx512;
    if (level >= kAvx2 && allowed >= kAvx2) return avx2;
#endif
    return baseline;
}
template const WindowKernels<float>& window_kernels();
template const WindowKernels<double>& window_kernels();

int limit_window_kernels(int level)
{
    return allowed_level.exchange(level);
}

}  // namespace meshard
