// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/evaluation/case_figures.h"
#include "apps/learning/settings/training_config.h"

#include <ATen/core/Tensor.h>

#include <map>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// Drag and lift as a head beside the fields learns them (models/registry/coefficient_head.h): with mean 0 and
/// deviation 1 over the training cases, of which a deviation counts as at least 0.001. They are the table's
/// (`data.forces.cd`, `cl`) where it has them of all training cases, else the integrals of the true fields.
class CoefficientTargets {
public:
    /// @param weights   in the loss, of drag and of lift; one of 0 is not learnt
    /// @param figures   of the training cases, in order
    /// @throws InvalidInput, and why, for a case without a coefficient
    CoefficientTargets(std::array<double, 2> weights, const JudgedFields& layout, const ForceSettings& settings,
                       std::span<const CaseSource> cases, std::span<const CaseFigures> figures,
                       const at::Device& device);

    /// Returns the term in the loss: the sum over the coefficients of weight times squared error, in deviations.
    /// @param coefficients   (1, coefficients), of the head
    at::Tensor loss(const at::Tensor& coefficients, const std::string& case_id) const;

    const std::vector<double>& means() const { return means_; }
    const std::vector<double>& deviations() const { return deviations_; }

private:
    at::Tensor weights_;  // (coefficients)
    std::vector<double> means_, deviations_;
    std::map<std::string, at::Tensor> targets_;  // by id, (1, coefficients)
};

/// Names the coefficients that are learnt, in order: cd, cl.
std::vector<std::string> names_of_coefficients(const std::array<double, 2>& weights);

}  // namespace meshard
