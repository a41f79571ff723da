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

/// Where a case lies in space: what makes its coordinates comparable with another's.
struct CaseFrame {
    std::array<double, 3> center{};
    std::array<double, 3> lengths{1, 1, 1};  ///< the points are divided by them
    std::array<double, 3> up{0, 0, 1};       ///< of length 1
    double ground = 0;                       ///< along `up`
    std::array<double, 6> bounds{};          ///< of the case's box: x, y and z, each lowest then highest
};

/// @param bounds    x, y and z of the whole case, each lowest then highest
/// @param source    gives the length where the configuration names a column; @throws InvalidInput if it cannot, or a length is not positive.
CaseFrame case_frame(const FrameConfig& config, const std::array<double, 6>& bounds, const CaseSource& source);

/// x, y and z of all points, each lowest then highest; zeros for none.
std::array<double, 6> point_bounds(const Mesh& mesh);

/// What the model is told about the first rows (cells or points) of a mesh, as `data.inputs` lists it: (rows, num_point_channels), float32. A cell's
/// place is the mean of its points. `rows` are their ids in the whole, for messages. Distances and areas are arrays of the mesh (computed_inputs.h).
/// @throws InvalidInput naming `where` and the array for a value that is not finite, and where normals can neither be read nor computed.
at::Tensor point_inputs(const Mesh& mesh, std::span<const std::int64_t> rows, const DataConfig& data, const CaseFrame& frame, const std::string& where);

/// What a model is told of points whose rows (`point_inputs`) this rank holds, and whose ids in the whole these are: sharded, with the ids. Collective.
/// Constants and time of the case are left to the caller.
PointInputs sharded_inputs(const at::Tensor& rows, std::span<const std::int64_t> ids, const std::shared_ptr<const DeviceMesh>& device_mesh);

/// The same of rows whose layout is known.
PointInputs sharded_inputs(const at::Tensor& rows, const SpecPtr& spec);

/// Adds what a model is told of a case besides its points: constants and time, from the case table. @throws InvalidInput as `CaseSource::number`
void add_case_constants(PointInputs& inputs, const DataConfig& data, const CaseSource& source);

/// The fields to be predicted, of the first rows, side by side in the order of the configuration: (rows, channels), float32.
/// @throws InvalidInput for a missing array (with the nearest name), or a value that is not finite.
at::Tensor field_values(const Mesh& mesh, std::span<const std::int64_t> rows, const DataConfig& data, const std::string& where);

/// First part of each rank, and the number of parts: compact runs of parts with nearly equal owned rows.
std::vector<std::int32_t> part_runs(const Manifest& manifest, bool on_cells, std::int64_t num_ranks);
std::vector<std::int32_t> part_runs(std::span<const std::int64_t> rows_of_parts, std::int64_t num_ranks);

/// Numbers of each field to be predicted. @throws InvalidInput for an array that the case lacks, with the nearest name.
std::vector<std::int64_t> field_channels(const Manifest& manifest, const std::filesystem::path& shards, const DataConfig& data, const std::string& where);

/// A case over the ranks of a domain, one row a point, batch 1: sharded tensors.
struct CaseTensors {
    std::string id;
    std::int64_t num_points = 0;         ///< of all ranks
    PointInputs inputs;                  ///< of (1, N, channels that a point is told), (1, N, 3), (1, G) and (1)
    at::Tensor target;                   ///< (1, N, channels), in physical units
    at::Tensor measures;                 ///< (1, N, 1): area or volume over the mean of the whole case; undefined where nobody asks for it
    std::vector<std::int64_t> channels;  ///< of each field
};

/// The same on a device; unchanged if it is there. Copies from page-locked memory are queued, without a wait.
CaseTensors on_device(const CaseTensors& example, const at::Device& device);

/// The same in page-locked memory of the host, from which devices copy without a wait.
CaseTensors page_locked(const CaseTensors& example);

/// Bytes of this rank's parts of a case's tensors.
std::int64_t bytes_of(CaseTensors example);

}  // namespace meshard
