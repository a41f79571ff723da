// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_list.h"
#include "apps/learning/settings/training_config.h"
#include "io/shards/manifest.h"
#include "models/registry/registry.h"
#include "partition/mesh/mesh.h"
#include "sharding/ranks/device_mesh.h"
#include "sharding/tensor/shard_spec.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// The position and size of a case, by which its coordinates are made comparable with those of other cases.
struct CaseFrame {
    std::array<double, 3> center{};
    std::array<double, 3> lengths{1, 1, 1};  ///< the points are divided by them
    std::array<double, 3> up{0, 0, 1};       ///< a unit vector
    double ground = 0;                       ///< along `up`
    std::array<double, 6> bounds{};          ///< the case's box: lowest and highest x, y and z
};

/// Computes the frame of a case.
/// @param bounds    lowest and highest x, y and z of the whole case
/// @param source    gives the length if the configuration names a column
/// @throws InvalidInput if it cannot, or a length is not positive.
CaseFrame case_frame(const FrameConfig& config, const std::array<double, 6>& bounds, const CaseSource& source);

/// Returns the box that gives a case its frame: its own, or for a step of a run that of the run's first state.
std::array<double, 6> frame_bounds(const Manifest& manifest);

/// Returns the lowest and highest x, y and z of all points; zeros if there are none.
std::array<double, 6> point_bounds(const Mesh& mesh);

/// Computes the inputs of the first rows (cells or points) of a mesh in the order of `data.inputs`, and behind them the
/// numbers of `data.categories`, or all that is told of states: (rows, channels), float32. A cell's place is the mean
/// of its points. Distances and areas are read from arrays of the mesh (computed_inputs.h).
/// @param rows   the rows' ids in the whole, for messages
/// @throws InvalidInput naming `where` and the array for a value that is not finite or an unknown category, and where
/// normals can neither be read nor computed.
at::Tensor point_inputs(const Mesh& mesh, std::span<const std::int64_t> rows, const DataConfig& data,
                        const CaseFrame& frame, const std::string& where);

/// Makes sharded inputs of this rank's rows (`point_inputs`) with these ids in the whole. The caller adds constants and
/// time of the case. Collective.
PointInputs sharded_inputs(const at::Tensor& rows, std::span<const std::int64_t> ids,
                           const std::shared_ptr<const DeviceMesh>& device_mesh);

/// Makes sharded inputs of rows whose layout is known.
PointInputs sharded_inputs(const at::Tensor& rows, const SpecPtr& spec);

/// Restricts sharded inputs to `most` of their points or somewhat fewer: every n-th by its id, the same ones on any
/// number of ranks.
PointInputs thinned_inputs(const PointInputs& inputs, std::int64_t most);

/// Adds the constants and the time of a case from the case table. @throws InvalidInput as `CaseSource::number`
void add_case_constants(PointInputs& inputs, const DataConfig& data, const CaseSource& source);

/// Returns the values of an array of single precision, (rows, components).
at::Tensor float_rows(const DataArray& array);

/// Reads the target fields of the first rows, side by side in the order of the configuration: (rows, channels),
/// float32.
/// @throws InvalidInput for a missing array (with the nearest name), or a value that is not finite.
at::Tensor field_values(const Mesh& mesh, std::span<const std::int64_t> rows, const DataConfig& data,
                        const std::string& where);

/// How large a part of the rows each rank has, in any unit; all above zero.
using Shares = std::vector<double>;

/// Deals compact runs of parts whose numbers of rows are nearest to the ranks' shares: returns the first part of each
/// rank, then the number of parts.
std::vector<std::int32_t> part_runs(std::span<const std::int64_t> rows_of_parts, const Shares& shares);
/// Deals the parts of a case in nearly equal shares.
std::vector<std::int32_t> part_runs(const Manifest& manifest, bool on_cells, std::int64_t num_ranks);

/// Returns the number of channels of each target field. @throws InvalidInput for an array that the case lacks, with the
/// nearest name.
std::vector<std::int64_t> field_channels(const Manifest& manifest, const std::filesystem::path& shards,
                                         const DataConfig& data, const std::string& where);

/// A case over the ranks of a domain as sharded tensors, with one row a point and batch 1.
struct CaseTensors {
    std::string id;
    std::int64_t num_points = 0;  ///< on all ranks together
    PointInputs inputs;           ///< (1, N, channels), (1, N, 3), (1, G) and (1)
    at::Tensor target;            ///< (1, N, channels), in physical units
    /// (1, N, 1): what a point counts in losses, area or volume over the case's mean, or 0 where `data.mask` leaves it
    /// out; undefined: all alike.
    at::Tensor measures;
    std::vector<std::int64_t> channels;  ///< number of channels of each field
};

/// Returns which rows of (N, C) count, (N), bool: those that are not NaN, as `data.mask` makes them.
at::Tensor counted_rows(const at::Tensor& rows);

/// Copies a case to a device, if it is elsewhere. Copies from page-locked memory are queued, without a wait.
CaseTensors on_device(const CaseTensors& example, const at::Device& device);

/// Copies a case to page-locked memory of the host, from which devices copy without a wait.
CaseTensors page_locked(const CaseTensors& example);

}  // namespace meshard
