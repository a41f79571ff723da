// SPDX-License-Identifier: Apache-2.0
// The kernels of slice attention for GPUs take the compiler a minute for each kind of arithmetic; therefore each has
// its own source.
#pragma once

#include "ops/cuda/tile_launch_cuda.h"

#define MESHARD_SLICE_TILES(EXTERN, M)                                                                                 \
    EXTERN template void sum_in_slices_by<M>(const CudaLauncher&, const TilePoints&, const TileRows&, bool, float*);   \
    EXTERN template void find_log_sums_by<M>(const CudaLauncher&, const TilePoints&);                                  \
    EXTERN template void find_point_means_by<M>(const CudaLauncher&, const TilePoints&, const TileRows&, float*);      \
    EXTERN template void bring_from_slices_by<M>(const CudaLauncher&, const TilePoints&, const float*,                 \
                                                 const TileRows&);                                                     \
    EXTERN template void find_slice_gradients_by<M>(const CudaLauncher&, const TilePoints&, const TileGradients&,      \
                                                    float*);                                                           \
    EXTERN template void round_totals_by<M>(const CudaLauncher&, const float*, const float*, const float*, float*,     \
                                            std::int64_t, int);
