// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_tensors.h"
#include "apps/learning/settings/training_config.h"
#include "io/vtk/image_file.h"
#include "sharding/ranks/device_mesh.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace meshard {

/// What a model is told of a regular grid, and what it is to predict: rows are the points or cells of the file in its order, x fastest.
struct GridRows {
    std::vector<std::int64_t> extents;   ///< numbers of rows along each direction that has more than one, slowest first: z, y, x
    at::Tensor told;                     ///< (N, components of `data.arrays` side by side), float32
    at::Tensor target;                   ///< (N, channels), float32, in physical units; undefined where the truth was not asked for
    std::vector<std::int64_t> channels;  ///< of each field; empty without the truth
};

/// @param where        begins messages
/// @param with_truth   the fields to be predicted, too
/// @throws InvalidInput for a grid with fewer than two directions, an array that is missing (with the nearest name), and a value that is not finite, with the
///         place of the row
GridRows grid_rows(const ImageGrid& grid, const DataConfig& data, bool with_truth, const std::string& where);

/// `32 x 16`, as files count: x first.
std::string extents_text(const std::vector<std::int64_t>& extents);

/// A block of rows along the slowest direction for each rank of the domain, as even as it goes in multiples of `rows_together`, of rows laid side by side:
/// dimension 1 of tensors (1, N, ...).
SpecPtr spec_of_grid(const std::vector<std::int64_t>& extents, std::int64_t rows_together, const std::shared_ptr<const DeviceMesh>& domain);

/// This rank's part of (N, C) as (1, N, C), sharded.
at::Tensor own_rows_of_grid(const at::Tensor& rows, const SpecPtr& spec);

/// A case from its grid, over the ranks of a domain, with its constants.
CaseTensors grid_case_tensors(const GridRows& rows, const CaseSource& source, const DataConfig& data, const SpecPtr& spec);

}  // namespace meshard
