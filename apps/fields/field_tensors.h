// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/fields/mesh_fields.h"
#include "partition/mesh/data_array.h"
#include "partition/mesh/mesh.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace meshard {

// These functions convert mesh fields to tensors in double precision, and back.

/// Returns the first `num_rows` rows, or all for -1, as (rows, components). @throws InvalidInput for strings
at::Tensor tensor_of(const DataArray& array, std::int64_t num_rows = -1);

/// Returns the positions of the first `num_rows` points, or the centroids of cells, as (rows, 3); all for -1.
/// @throws InvalidInput for cells of a type whose faces are unknown
at::Tensor positions_of(const Mesh& mesh, FieldPlace place, std::int64_t num_rows = -1);

/// Converts (rows, ...) to an array: Float32 if `type`, that of the field from which it was computed, is Float32,
/// otherwise Float64.
DataArray array_of(const std::string& name, const at::Tensor& values, ScalarType type);

}  // namespace meshard
