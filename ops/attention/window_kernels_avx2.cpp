// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/window_kernels_body.h"

namespace meshard {

template <class T>
WindowKernels<T> avx2_window_kernels()
{
    return window_kernels_here<T>();
}
template WindowKernels<float> avx2_window_kernels();
template WindowKernels<double> avx2_window_kernels();

}  // namespace meshard
