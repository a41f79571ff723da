// SPDX-License-Identifier: Apache-2.0
#include "ops/search/point_kernels_body.h"

namespace meshard {

template <class T>
PointKernels<T> avx512_point_kernels()
{
    return kernels_here<T>();
}
template PointKernels<float> avx512_point_kernels();
template PointKernels<double> avx512_point_kernels();

}  // namespace meshard
