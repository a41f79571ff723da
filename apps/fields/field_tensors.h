// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/fields/mesh_fields.h"
#include "partition/mesh/data_array.h"
#include "partition/mesh/mesh.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace meshard {

// Conversion of mesh fields to tensors in double precision, and back.

/// The first `num_rows` rows, (rows, components); all for -1. @throws InvalidInput for strings
at::Tensor tensor_of(const DataArray& array, std::int64_t num_rows = -1);

/// (rows, 3): positions of the first `num_rows` points, or centroids of cells; all for -1.
/// @throws InvalidInput for cells of a type whose faces are unknown
at::Tensor positions_of(const Mesh& mesh, FieldPlace place, std::int64_t num_rows = -1);

/// (rows, ...) as an array: Float32 if `type` (of the field from which it was computed) is, otherwise Float64.
DataArray array_of(const std::string& name, const at::Tensor& values, ScalarType type);

}  // namespace meshard
