// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/evaluation/field_metrics.h"
#include "apps/learning/evaluation/force_metrics.h"
#include "apps/learning/settings/training_config.h"
#include "partition/mesh/mesh.h"
#include "sharding/ranks/rank_group.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace meshard {

/// Columns of `row_geometry`: area vector (3), place (3), area, or volume in a mesh of solids, and centroid times area
/// vector (3, the cross product), centroid by area (3) and area of a surface, from which forces and moments are
/// computed. (A point of a thin plate has an area, but no area vector.)
inline constexpr std::int64_t kGeometryColumns = 14;

/// Returns (rows, kGeometryColumns), row by row, for all cells or points of a mesh. A point takes equal shares of the
/// cells around it, so that a sum over points equals the sum over cells of the mean of their points. All areas are 0 in
/// a cloud without cells.
std::vector<double> row_geometry(const Mesh& mesh, bool on_cells);

/// Adds `row_geometry` to a whole mesh as an array, so that its parts carry it.
void add_geometry(Mesh& mesh, bool on_cells);

/// Removes the array that `add_geometry` added, and returns its first rows: (num_rows, kGeometryColumns), double.
at::Tensor take_geometry(Mesh& mesh, std::int64_t num_rows, bool on_cells);

/// Computes `row_geometry` for the rows of a shards folder whose ids in the whole mesh are `ids`, ascending: (ids,
/// kGeometryColumns), double.
/// @param first_part   part that is read first, where most of these rows lie
at::Tensor shard_geometry(const std::filesystem::path& shards, bool on_cells, std::span<const std::int64_t> ids,
                          std::int32_t first_part);

/// Returns (rows, kGeometryColumns), double, for rows of solids with these volumes, (rows). Places stay 0, since no
/// forces are computed on solids.
at::Tensor volume_geometry(const at::Tensor& volumes);

/// Says which channels of the fields are pressure and shear stress.
struct JudgedFields {
    std::vector<FieldConfig> fields;
    std::vector<std::int64_t> channels;  ///< number of channels of each field
    std::int64_t pressure = -1;          ///< channel of the first field whose kind is a pressure's, -1 for none
    std::int64_t shear = -1;             ///< first of three channels of the field whose kind is stress
    std::string pressure_kind;

    JudgedFields(const std::vector<FieldConfig>& fields, const std::vector<std::int64_t>& channels);
    std::int64_t num_channels() const;
};

/// All sums over the points of one case that its metrics need. They are the same on every rank.
struct CaseSums {
    std::vector<ChannelSums> channels;
    std::vector<MagnitudeSums> magnitudes;  ///< one a field
    ForceSums forces;

    /// Returns the errors of all fields by name, as `named_field_metrics` has them.
    Metrics metrics(const JudgedFields& layout) const;

    /// `numbers` puts all sums in one row of `num_numbers` values, from which `from_numbers` restores them.
    static std::int64_t num_numbers(const JudgedFields& layout);
    std::vector<double> numbers() const;
    static CaseSums from_numbers(const JudgedFields& layout, std::span<const double> numbers);
};

/// Computes the sums in double over the owned rows of all ranks of `group` that count. Collective.
/// @param prediction, truth   (N, channels), in physical units, this rank's rows
/// @param geometry            (N, kGeometryColumns), double; undefined: no areas and forces
/// @param guess               (channels), means over the training cases, with which errors are compared
CaseSums case_sums(const at::Tensor& prediction, const at::Tensor& truth, const at::Tensor& geometry,
                   const JudgedFields& layout, const at::Tensor& guess, const RankGroup& group);

/// Computes the drag coefficients of `num_bins` equal pieces of [low, high] along x: (2, num_bins), by the true and by
/// the predicted fields; the pieces add up to the coefficients of the case. Other arguments are as for `case_sums`.
/// Collective.
std::vector<std::vector<double>> drag_along_x(const at::Tensor& prediction, const at::Tensor& truth,
                                              const at::Tensor& geometry, const JudgedFields& layout,
                                              const ForceSums& sums, const FlowReference& flow, double low, double high,
                                              std::int64_t num_bins, const RankGroup& group);

}  // namespace meshard
