// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_list.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshard {

/// Scales a case's fields to (x - shift) / scale, which has no unit. Undefined tensors leave the fields as they are.
struct FieldScaling {
    at::Tensor shift;  ///< (channels), float32
    at::Tensor scale;  ///< (channels), float32

    /// Both functions take plain or sharded tensors whose last dimension is the channels.
    at::Tensor without_unit(const at::Tensor& physical) const
    {
        return scale.defined() ? (physical - shift) / scale : physical;
    }
    at::Tensor physical(const at::Tensor& without_unit) const
    {
        return scale.defined() ? without_unit * scale + shift : without_unit;
    }

    FieldScaling on(const at::Device& device) const;
};

/// The scale of a kind of fields: `factor` times a product of powers of quantities. Some kinds subtract p_inf first.
struct FieldMeasure {
    double factor = 1;
    std::map<std::string, int> powers = {};
    bool is_above_p_inf = false;
};

/// Returns the measure of a kind; physical targets have none.
FieldMeasure measure_of(const DataConfig& data, std::string_view kind);

/// Names the quantities by which the data's fields are scaled, e.g. `U_inf`, `rho`, `p_inf`; none if targets are
/// physical.
std::vector<std::string> reference_quantities(const DataConfig& data);

/// Scales each field by its kind, with the dynamic pressure q = U_inf^2 / 2 for `kinematic` and rho U_inf^2 / 2 for
/// `static` pressures (docs/training.md): pressures (p - p_inf) / q, `stress` by the q of the first pressure field,
/// `velocity` / U_inf, `temperature` / T_inf, `density` / rho, `viscosity` / (U_inf L); fields of other kinds stay as
/// they are, and so do all fields if targets are physical.
/// @param channels   number of channels of each field
/// @param where      begins the message of what is thrown
/// @param value_of   gives a quantity of `reference_quantities`, or throws
/// @throws InvalidInput for a quantity that a field would be divided by and that is not above 0
FieldScaling field_scaling(const DataConfig& data, std::span<const std::int64_t> channels, const std::string& where,
                           const std::function<double(const std::string& quantity)>& value_of);

/// Scales the fields of a case by the quantities of `data.reference`, which are numbers or columns of the case table,
/// or else by the columns of the same names.
/// @throws InvalidInput naming the case and a quantity that neither has
FieldScaling field_scaling(const DataConfig& data, std::span<const std::int64_t> channels, const CaseSource& source);

/// Returns the first channel and the length of each vector whose components share one deviation
/// (`data.vector_deviation`).
std::vector<std::pair<std::int64_t, std::int64_t>> shared_vectors(const DataConfig& data,
                                                                  std::span<const std::int64_t> channels);

}  // namespace meshard
