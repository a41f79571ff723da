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

/// Inputs and targets of a regular grid. The rows are the file's points or cells in its order, x fastest.
struct GridRows {
    /// Number of rows along each direction with more than one, slowest first: z, y, x.
    std::vector<std::int64_t> extents;
    at::Tensor told;                     ///< (N, components of `data.arrays` side by side), float32: the inputs
    at::Tensor target;                   ///< (N, channels), float32, in physical units; undefined without the truth
    std::vector<std::int64_t> channels;  ///< number of channels of each field; empty without the truth
};

/// Reads a grid's inputs and, on request, its targets.
/// @param with_truth   reads the targets, too
/// @param where        begins messages
/// @throws InvalidInput for a grid with fewer than two directions, an array that is missing (with the nearest name),
/// and a value that is not finite, with the place of the row
GridRows grid_rows(const ImageGrid& grid, const DataConfig& data, bool with_truth, const std::string& where);

/// Makes the inputs, and on request the targets, of a step of a run of grids: what is told of the states, and what is
/// learnt.
/// @param states   the mesh of the step (`read_step`, `add_told`)  @param grid   any state
/// @throws as `grid_rows`
GridRows grid_rows_of_step(const Mesh& states, ImageGrid grid, DataConfig data, bool with_truth,
                           const std::string& where);

/// Writes extents as `32 x 16`, x first.
std::string extents_text(const std::vector<std::int64_t>& extents);

/// Lays out rows of tensors (1, N, ...) over the domain's ranks: each has a block along the slowest direction, of
/// nearly equal sizes that are multiples of `rows_together` if there are enough rows.
SpecPtr spec_of_grid(const std::vector<std::int64_t>& extents, std::int64_t rows_together,
                     const std::shared_ptr<const DeviceMesh>& domain);

/// Returns this rank's part of `rows`, (N, C), as a sharded tensor (1, N, C).
at::Tensor own_rows_of_grid(const at::Tensor& rows, const SpecPtr& spec);

/// Makes a case over the ranks of a domain from its grid, with its constants.
CaseTensors grid_case_tensors(const GridRows& rows, const CaseSource& source, const DataConfig& data,
                              const SpecPtr& spec);

}  // namespace meshard
