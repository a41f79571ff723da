// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/verbs/mesh_fields.h"
#include "partition/mesh/data_array.h"
#include "partition/mesh/mesh.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace meshard {

// Fields of meshes as tensors that verbs compute with, in double precision whatever the files hold, and back.

/// The first rows, (rows, components); all for -1. @throws InvalidInput for strings
at::Tensor tensor_of(const DataArray& array, std::int64_t num_rows = -1);

/// (rows, 3): where the mesh's first points or cells stand, cells at their centroids; all for -1.
/// @throws InvalidInput for cells whose faces nobody can know
at::Tensor positions_of(const Mesh& mesh, FieldPlace place, std::int64_t num_rows = -1);

/// (rows, ...) as an array in the type of a field that it was computed from: Float32 of Float32, else Float64.
DataArray array_of(const std::string& name, const at::Tensor& values, ScalarType type);

}  // namespace meshard
