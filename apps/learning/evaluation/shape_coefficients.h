// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_list.h"
#include "apps/learning/evaluation/case_figures.h"

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
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

/// Predicts drag and lift of a case from its shape alone, by regression over the training cases: a baseline that a
/// model of fields has to beat.
class ShapeCoefficients {
public:
    struct Values {
        double drag = 0, lift = 0;
        /// Distance of the case's numbers from those of the nearest training case, each in deviations of the training
        /// cases (of at least 0.01, constants of at least 1 % of their mean), over the median of that distance among
        /// the training cases; 0 for one of them.
        double isolation = 0;
        /// Whether that distance is larger than each training case's from the nearest other: of n cases drawn as they
        /// were one in n + 1 is.
        bool is_outside = false;
    };

    /// Learns from the training cases; returns nothing for fewer than kFewestCases of them, or if the shape, drag or
    /// lift of one is not known. Drag and lift are the table's if it has both for all cases, else the integrals of the
    /// true fields.
    /// @param figures   figures of the cases, in order
    static std::optional<ShapeCoefficients> of_cases(std::span<const CaseSource> cases,
                                                     std::span<const CaseFigures> figures, const DataConfig& data,
                                                     const ForceSettings& settings, const JudgedFields& layout);

    ShapeCoefficients() = default;  ///< of no cases
    static ShapeCoefficients from_json(const nlohmann::json& json);
    nlohmann::json to_json() const;  ///< {numbers: [a row a case], cd, cl}

    /// Predicts for a shape; nothing for one that `shape_numbers` has no numbers of.
    /// @param constants   values of the case in the order of `data.constants`
    std::optional<Values> of(const ShapeSums& shape, const ForceSums& forces, const std::array<double, 6>& bounds,
                             const FlowReference& flow, const std::vector<double>& constants) const;

    static constexpr std::size_t kFewestCases = 10;

private:
    ShapeCoefficients(std::vector<std::vector<double>> numbers, std::vector<double> drag, std::vector<double> lift);

    std::vector<std::vector<double>> numbers_;  // a row a training case: `shape_numbers`, then the constants
    std::vector<double> drags_, lifts_;

    struct Regressions {
        ShapeRegression drag, lift;
    };
    mutable std::shared_ptr<const Regressions> learnt_;  // made at the first prediction: 200 cases take seconds
};

/// Returns the numbers of a case in the columns of `data.constants`.
std::vector<double> constants_of_case(const DataConfig& data, const CaseSource& source);

}  // namespace meshard
