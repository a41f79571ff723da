// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace meshard {

/// Scales each channel to mean 0 and standard deviation 1, and back. A channel that never changed, of deviation 0,
/// keeps its unit, and on the way back it is its mean, whatever a model says.
struct Normalizer {
    at::Tensor mean;  ///< (C), float32
    at::Tensor std;   ///< (C), float32

    at::Tensor normalize(const at::Tensor& x) const { return (x - mean) / std.masked_fill(std.eq(0), 1); }
    at::Tensor denormalize(const at::Tensor& x) const { return x * std + mean; }

    Normalizer on(const at::Device& device) const { return {mean.to(device), std.to(device)}; }
};

/// Returns x with 0 in place of NaN, which marks rows that do not count (`data.mask`): in normalised units their mean.
/// @param x   plain or sharded
at::Tensor zero_for_nan(const at::Tensor& x);

/// Mean and unbiased standard deviation of each channel over the rows of all tensors that were added, in double
/// precision (pairwise merging of Chan, Golub and LeVeque 1983).
class ChannelStatistics {
public:
    ChannelStatistics() = default;
    /// Statistics of rows that were added elsewhere. @param mean, squared_differences   for each channel; both empty
    /// for no rows
    ChannelStatistics(std::int64_t num_rows, const std::vector<double>& mean,
                      const std::vector<double>& squared_differences);

    /// @param rows   (N, C)   @throws InvalidInput if C differs from that of earlier tensors.
    void add(const at::Tensor& rows);

    /// Adds the rows of other statistics. @throws as `add`
    void merge(const ChannelStatistics& other);

    /// The statistics of (x - shift) / scale for each row x. @param shift, scale   (C), plain; scales are not 0
    ChannelStatistics mapped(const at::Tensor& shift, const at::Tensor& scale) const;

    std::int64_t num_rows() const { return num_rows_; }
    std::vector<double> mean() const;  ///< for each channel
    /// For each channel the sum over the rows of the squared differences to the mean.
    std::vector<double> squared_differences() const;

    /// The normaliser for these statistics. A channel that is constant but for the rounding of float32 has the
    /// deviation 0. @throws InvalidInput for fewer than two rows.
    /// @param vectors   first channel and number of channels of each vector: its components keep their mean, and are
    ///                  divided by one number, the root of the mean square over rows and components, so that a rotation
    ///                  of the vector does not change its length
    Normalizer normalizer(std::span<const std::pair<std::int64_t, std::int64_t>> vectors = {}) const;

private:
    std::int64_t num_rows_ = 0;
    at::Tensor mean_;         // (C)
    at::Tensor squared_sum_;  // (C), sums of squared differences to the mean
};

}  // namespace meshard
