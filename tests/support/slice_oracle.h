// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace meshard {

struct SliceSizes {
    std::int64_t count;
    int heads, slices, head_dim;
};

/// What kernels of slice attention are given (ops/cuda/tile_kernels.h), in double; `inverse_temperature` (H, padded
/// points) and `noise` (points, H, S) may be empty.
struct SliceInputs {
    std::vector<double> x, slices, bias, features, y_gradient, states, sums_gradient, inverse_temperature, noise;
};

struct SliceOutputs {
    std::vector<double> sums, y, dstates, dx, df, dW, dwarmth;  ///< dwarmth: (points, H)
};

/// The same by loops in double precision.
inline SliceOutputs slice_oracle(const SliceSizes& sizes, const SliceInputs& in)
{
    const int H = sizes.heads, S = sizes.slices, D = sizes.head_dim;
    const auto N = sizes.count, padded = (N + 31) / 32 * 32;
    const auto zeros = [](std::int64_t size) { return std::vector<double>(static_cast<std::size_t>(size)); };
    SliceOutputs out{
        zeros(H * S * (D + 1)), zeros(N * H * D), zeros(H * S * (D + 1)), zeros(N * H * D), zeros(N * H * D),
        zeros(H * S * (D + 1)), zeros(N * H)};
    std::vector<double> w(S), g(S), logit(S);
    for (std::int64_t n = 0; n < N; ++n)
        for (int h = 0; h < H; ++h) {
            const auto at = (n * H + h) * D;
            const double inverse_temperature =
                in.inverse_temperature.empty() ? 1 : in.inverse_temperature[h * padded + n];
            double total = 0, mean = 0;
            for (int i = 0; i < S; ++i) {
                double l = in.bias[h * S + i] + (in.noise.empty() ? 0 : in.noise[(n * H + h) * S + i]);
                for (int d = 0; d < D; ++d) l += in.x[at + d] * in.slices[(h * S + i) * D + d];
                logit[i] = l;
                total += w[i] = std::exp(l * inverse_temperature);
            }
            for (int i = 0; i < S; ++i) {
                const int hs = h * S + i;
                const double* ds = &in.sums_gradient[hs * (D + 1)];
                w[i] /= total;
                g[i] = ds[D];
                for (int d = 0; d < D; ++d) {
                    out.sums[hs * (D + 1) + d] += w[i] * in.features[at + d];
                    out.dstates[hs * (D + 1) + d] += w[i] * in.y_gradient[at + d];
                    out.y[at + d] += w[i] * in.states[hs * D + d];
                    out.df[at + d] += w[i] * ds[d];
                    g[i] += in.y_gradient[at + d] * in.states[hs * D + d] + in.features[at + d] * ds[d];
                }
                out.sums[hs * (D + 1) + D] += w[i];
                out.dstates[hs * (D + 1) + D] += w[i];
                mean += w[i] * g[i];
            }
            for (int i = 0; i < S; ++i) {
                const int hs = h * S + i;
                const double of_logit = w[i] * (g[i] - mean);
                out.dwarmth[n * H + h] += of_logit * logit[i];
                for (int d = 0; d < D; ++d) {
                    out.dx[at + d] += of_logit * inverse_temperature * in.slices[hs * D + d];
                    out.dW[hs * (D + 1) + d] += of_logit * inverse_temperature * in.x[at + d];
                }
                out.dW[hs * (D + 1) + D] += of_logit * inverse_temperature;
            }
        }
    return out;
}

/// The error as a share of the norm, |found - expected| / |expected|; 0 where both are 0.
inline double relative_error(const std::vector<double>& found, const std::vector<double>& expected)
{
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
        difference += (found[i] - expected[i]) * (found[i] - expected[i]);
        size += expected[i] * expected[i];
    }
    return difference == 0 ? 0 : std::sqrt(difference / size);
}

}  // namespace meshard
