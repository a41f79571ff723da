// SPDX-License-Identifier: Apache-2.0
#include "ops/search/point_kernels.h"

#include "ops/search/point_kernels_body.h"

namespace meshard {

#if defined(__x86_64__)
template <class T>
PointKernels<T> avx2_point_kernels();
template <class T>
PointKernels<T> avx512_point_kernels();
#endif

template <class T>
const std::vector<PointKernels<T>>& usable_point_kernels()
{
    static const auto usable = [] {
        std::vector<PointKernels<T>> kernels{kernels_here<T>()};
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx2")) kernels.push_back(avx2_point_kernels<T>());
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw")) {
            kernels.push_back(avx512_point_kernels<T>());
        }
#endif
        return kernels;
    }();
    return usable;
}
template const std::vector<PointKernels<float>>& usable_point_kernels();
template const std::vector<PointKernels<double>>& usable_point_kernels();

template <class T>
const PointKernels<T>& point_kernels()
{
    return usable_point_kernels<T>().back();
}
template const PointKernels<float>& point_kernels();
template const PointKernels<double>& point_kernels();

}  // namespace meshard
