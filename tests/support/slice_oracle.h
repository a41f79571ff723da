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

struct LatentOutputs {
    std::vector<double> means, y, dstates, dk, dv, dq;  ///< means: (H, S, D + 1), as `find_point_means` has them
};

/// FLARE's attention and its gradients by loops: keys, values and the gradient of y (points, H, D), queries (H, S, D).
inline LatentOutputs latent_oracle(const SliceSizes& sizes, const std::vector<double>& k, const std::vector<double>& q,
                                   const std::vector<double>& v, const std::vector<double>& dy)
{
    const int H = sizes.heads, S = sizes.slices, D = sizes.head_dim;
    const auto N = sizes.count;
    const auto zeros = [](std::int64_t size) { return std::vector<double>(static_cast<std::size_t>(size)); };
    LatentOutputs out{zeros(H * S * (D + 1)), zeros(N * H * D), zeros(H * S * D),
                      zeros(N * H * D),       zeros(N * H * D), zeros(H * S * D)};
    const auto dot = [D](const double* a, const double* b) {
        double sum = 0;
        for (int d = 0; d < D; ++d) sum += a[d] * b[d];
        return sum;
    };
    std::vector<double> l(N * S), w(N * S), a(N * S);
    for (int h = 0; h < H; ++h) {
        const auto point = [&](const std::vector<double>& rows, std::int64_t n) { return &rows[(n * H + h) * D]; };
        const auto add = [&](std::vector<double>& to, std::int64_t at, double factor, const double* row) {
            for (int d = 0; d < D; ++d) to[at * D + d] += factor * row[d];
        };
        for (std::int64_t n = 0; n < N; ++n) {
            for (int s = 0; s < S; ++s) l[n * S + s] = dot(point(k, n), &q[(h * S + s) * D]);
            const double largest = *std::max_element(&l[n * S], &l[n * S] + S);
            double total = 0;
            for (int s = 0; s < S; ++s) total += w[n * S + s] = std::exp(l[n * S + s] - largest);
            for (int s = 0; s < S; ++s) w[n * S + s] /= total;
        }
        std::vector<double> z(S * D), dz(S * D);
        for (int s = 0; s < S; ++s) {
            double largest = -1e300, total = 0;
            for (std::int64_t n = 0; n < N; ++n) largest = std::max(largest, l[n * S + s]);
            for (std::int64_t n = 0; n < N; ++n) total += std::exp(l[n * S + s] - largest);
            for (std::int64_t n = 0; n < N; ++n) {
                a[n * S + s] = std::exp(l[n * S + s] - largest) / total;
                add(z, s, a[n * S + s], point(v, n));
                add(dz, s, w[n * S + s], point(dy, n));
            }
            std::copy_n(&z[s * D], D, &out.means[(h * S + s) * (D + 1)]);
            out.means[(h * S + s) * (D + 1) + D] = largest + std::log(total);
            std::copy_n(&dz[s * D], D, &out.dstates[(h * S + s) * D]);
        }
        for (std::int64_t n = 0; n < N; ++n) {
            double mean = 0;
            for (int s = 0; s < S; ++s) {
                add(out.y, n * H + h, w[n * S + s], &z[s * D]);
                add(out.dv, n * H + h, a[n * S + s], &dz[s * D]);
                mean += w[n * S + s] * dot(point(dy, n), &z[s * D]);
            }
            for (int s = 0; s < S; ++s) {
                const double dl = w[n * S + s] * (dot(point(dy, n), &z[s * D]) - mean) +
                                  a[n * S + s] * (dot(point(v, n), &dz[s * D]) - dot(&z[s * D], &dz[s * D]));
                add(out.dk, n * H + h, dl, &q[(h * S + s) * D]);
                add(out.dq, h * S + s, dl, point(k, n));
            }
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
