// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace meshard {

/// Mean and spread of several predictions of the same rows, in double precision, none of which is kept (Welford, Note
/// on a method for calculating corrected sums of squares and products, 1962).
class PredictionSpread {
public:
    /// @param rows   (rows, channels), on the host
    void add(const at::Tensor& rows);

    std::int64_t count() const { return count_; }

    /// Of one prediction that one itself, bit for bit. (rows, channels), float32.
    at::Tensor mean() const;

    /// Standard deviation of the predictions (of n - 1), (rows, channels), float32; undefined for one.
    at::Tensor spread() const;

private:
    std::int64_t count_ = 0;
    at::Tensor first_, mean_, squares_;  // of the differences to the mean
};

}  // namespace meshard
