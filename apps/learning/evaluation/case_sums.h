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

/// Numbers of a row (cell or point) in `row_geometry`: its area vector, its place, and its area, or volume in a mesh of solids.
inline constexpr std::int64_t kGeometryColumns = 7;

/// (rows, kGeometryColumns), row by row, of all rows of a mesh. A point has equal shares of the cells around it, so that a sum over points is the sum over
/// cells of the mean of their points. All areas are 0 in a cloud without cells.
std::vector<double> row_geometry(const Mesh& mesh, bool on_cells);

/// Adds an array with these numbers to the rows of a whole mesh, so that they go with its parts.
void add_geometry(Mesh& mesh, bool on_cells);

/// Takes that array away. Returns its first rows: (num_rows, kGeometryColumns), double.
at::Tensor take_geometry(Mesh& mesh, std::int64_t num_rows, bool on_cells);

/// These numbers of those rows of a shards folder that have these ids in the whole, ascending: (ids, kGeometryColumns), double.
/// @param first_part   read first: the part where most of them lie
at::Tensor shard_geometry(const std::filesystem::path& shards, bool on_cells, std::span<const std::int64_t> ids, std::int32_t first_part);

/// The same of rows of solids with these volumes, (rows), double, whose places are of no matter and stay 0: there are no forces on solids.
at::Tensor volume_geometry(const at::Tensor& volumes);

/// Which channels are what.
struct JudgedFields {
    std::vector<FieldConfig> fields;
    std::vector<std::int64_t> channels;  ///< of each field
    std::int64_t pressure = -1;          ///< channel of the first field whose kind is a pressure's, -1 for none
    std::int64_t shear = -1;             ///< first of three channels of the field whose kind is stress
    std::string pressure_kind;

    JudgedFields(const std::vector<FieldConfig>& fields, const std::vector<std::int64_t>& channels);
    std::int64_t num_channels() const;
};

/// All sums over the points of one case that its metrics need. They are the same on every rank.
struct CaseSums {
    std::vector<ChannelSums> channels;
    std::vector<MagnitudeSums> magnitudes;  ///< of each field
    ForceSums forces;

    /// Errors of all fields by name, as `named_field_metrics`.
    Metrics metrics(const JudgedFields& layout) const;

    /// All numbers in one row, and back.
    static std::int64_t num_numbers(const JudgedFields& layout);
    std::vector<double> numbers() const;
    static CaseSums from_numbers(const JudgedFields& layout, std::span<const double> numbers);
};

/// Sums in double over the owned rows of all ranks of `group`. Collective.
/// @param prediction, truth   (N, channels), in physical units, this rank's rows
/// @param geometry            (N, kGeometryColumns), double; undefined: no areas and forces
/// @param guess               (channels), what a model would give that knows nothing: the means of training
CaseSums case_sums(const at::Tensor& prediction, const at::Tensor& truth, const at::Tensor& geometry, const JudgedFields& layout, const at::Tensor& guess,
                   const RankGroup& group);

/// Drag along x, of `num_bins` equal pieces of [low, high], as coefficients: (2, num_bins), of the truth and of the prediction; their sums are the
/// coefficients. The other arguments are as above. Collective.
std::vector<std::vector<double>> drag_along_x(const at::Tensor& prediction, const at::Tensor& truth, const at::Tensor& geometry, const JudgedFields& layout,
                                              const ForceSums& sums, const FlowReference& flow, double low, double high, std::int64_t num_bins,
                                              const RankGroup& group);

}  // namespace meshard
