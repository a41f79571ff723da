// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_list.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// What the fields of a case are measured by: without a unit they are (x - shift) / scale. Nothing where models learn fields as they are.
struct FieldScaling {
    at::Tensor shift;  ///< (channels), float32
    at::Tensor scale;  ///< (channels), float32

    /// Plain or sharded tensors whose last dimension is the channels.
    at::Tensor without_unit(const at::Tensor& physical) const { return scale.defined() ? (physical - shift) / scale : physical; }
    at::Tensor physical(const at::Tensor& without_unit) const { return scale.defined() ? without_unit * scale + shift : without_unit; }

    FieldScaling on(const at::Device& device) const;
};

/// Names of the quantities that the kinds of the data's fields are measured by, e.g. `U_inf`, `rho`, `p_inf`; none where targets are physical.
std::vector<std::string> reference_quantities(const DataConfig& data);

/// By kind, with the dynamic pressure q = U_inf^2 / 2 of `kinematic` and rho U_inf^2 / 2 of `static` pressures (docs/training.md):
/// pressures (p - p_inf) / q, `stress` by the q of the first pressure field, `velocity` / U_inf, `temperature` / T_inf, `density` / rho,
/// `viscosity` / (U_inf L); all other kinds are numbers already. Nothing where targets are physical.
/// @param channels   of each field
/// @param value_of   gives a quantity of `reference_quantities`, or throws
/// @param where      begins the message of what is thrown
/// @throws InvalidInput for a quantity that a field would be divided by and that is not above 0
FieldScaling field_scaling(const DataConfig& data, std::span<const std::int64_t> channels, const std::string& where,
                           const std::function<double(const std::string& quantity)>& value_of);

/// The same of a case: quantities are those of `data.reference`, numbers or columns of the case table, and otherwise the columns of their names.
/// @throws InvalidInput naming the case and the quantity that neither has
FieldScaling field_scaling(const DataConfig& data, std::span<const std::int64_t> channels, const CaseSource& source);

/// First channel of each vector whose components share one deviation (`data.vector_deviation`), and their number.
std::vector<std::pair<std::int64_t, std::int64_t>> shared_vectors(const DataConfig& data, std::span<const std::int64_t> channels);

}  // namespace meshard
