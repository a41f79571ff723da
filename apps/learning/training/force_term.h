// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_tensors.h"
#include "apps/learning/evaluation/case_figures.h"
#include "apps/learning/settings/training_config.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <map>
#include <span>
#include <string>

namespace meshard {

/// Errors of drag and lift as a term of the loss: sum over the two of w ((C_predicted - C_true) / sigma)^2. Both coefficients are integrals over the points
/// that take part in the step, of the prediction and of the truth: of k of N points N / k times the sum (Horvitz and Thompson, A generalization of sampling
/// without replacement, 1952). sigma is the standard deviation of the true coefficient over the training cases, at least 0.001.
/// With `data.sampling: areas` each of k drawn points stands for the same share of the whole area, so that its area does not count again.
/// Area vectors are the normals that the model is told, which must be among `data.inputs`, times the areas that are stored beside (`CaseTensors::measures`).
class ForceTerm {
public:
    /// @param weights   of drag and of lift
    /// @param figures   of the training cases, in order: their signs and true coefficients
    /// @throws InvalidInput, and why, for a case without coefficients
    ForceTerm(std::array<double, 2> weights, const DataConfig& data, const JudgedFields& layout, const ForceSettings& settings,
              std::span<const CaseSource> cases, std::span<const CaseFigures> figures, const at::Device& device);

    /// A single value.
    /// @param difference   predicted minus true, in physical units, (1, n, channels)
    /// @param example      the training case with the points of the step
    at::Tensor operator()(const at::Tensor& difference, const CaseTensors& example) const;

    /// sigma of drag and of lift.
    const std::array<double, 2>& deviations() const { return deviations_; }

private:
    /// What makes sums of fields times normals and areas, these over their mean, coefficients: columns for drag and lift, divided by sigma.
    struct OfCase {
        at::Tensor of_pressure, of_shear;  // (3, 2)
        std::int64_t num_points = 0;       // of the whole case
    };

    JudgedFields layout_;
    std::int64_t normals_ = 0;  // first channel among the inputs
    bool draws_by_area_ = false;
    at::Tensor weights_;  // (2)
    std::array<double, 2> deviations_{};
    std::map<std::string, OfCase> cases_;  // by id
};

}  // namespace meshard
