// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/window_kernels_body.h"

namespace meshard {

template <class T>
WindowKernels<T> avx512_window_kernels()
{
    return window_kernels_here<T>();
}
template WindowKernels<float> avx512_window_kernels();
template WindowKernels<double> avx512_window_kernels();

}  // namespace meshard
