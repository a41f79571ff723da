// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace meshard {

/// A function of several numbers, learnt from few cases: a mean of Gaussian processes of one or two of the numbers
/// each, with squared-exponential kernels of four lengths and four levels of noise. Weights of the mean are not
/// negative, add up to 1, and are those with the least squares of errors where each case is predicted by the others
/// (stacked regression; Breiman, Machine Learning 24, 1996).
class ShapeRegression {
public:
    /// Learns from at most kMostCases of the cases, evenly spaced in their order.
    /// @param numbers   (cases, numbers); numbers whose deviation is at most 0.001 are left out
    /// @param values    (cases)
    ShapeRegression(const std::vector<std::vector<double>>& numbers, const std::vector<double>& values);

    double operator()(std::span<const double> numbers) const;

    static constexpr std::int64_t kMostCases = 200;

private:
    /// A Gaussian process whose weight is not zero.
    struct Process {
        std::vector<std::int64_t> columns;  // numbers on which it depends
        double length = 0;
        at::Tensor of_cases;  // (cases): factors of the kernel's values, times the weight
    };

    at::Tensor standardised(const at::Tensor& numbers) const;

    at::Tensor means_, deviations_;  // (numbers)
    at::Tensor cases_;               // (cases, numbers), standardised
    double mean_ = 0, deviation_ = 0;
    std::vector<Process> processes_;
};

}  // namespace meshard
