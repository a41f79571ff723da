// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/cut/cut_options.h"
#include "apps/cut/partition_report.h"
#include "apps/program/stage_timer.h"
#include "io/shards/manifest.h"
#include "partition/mesh/data_array.h"
#include "partition/mesh/mesh.h"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// NaN among the values of an array's rows from `begin` to `end`, and the warning of so many.
std::int64_t count_nan(const DataArray& array, std::int64_t begin, std::int64_t end);
std::string nan_text(const DataArray& array, const std::string& group, std::int64_t num_nan);

/// The part that an array gives to a row. @throws InvalidInput if that is none.
std::int32_t given_part(const DataArray& array, std::int64_t row);

/// The warning of a cell with a facet of too many cells.
std::string crowded_text(std::int64_t cell);

/// Warns of parts that are in pieces though asked not to be, if there are any.
void warn_of_pieces(std::span<const std::int32_t> in_pieces);

/// Where a mesh came from.
struct MeshSource {
    std::string name;                               ///< as the user gave it
    std::string path;                               ///< of the file that was cut first, for the manifest
    std::string hash = {};                          ///< of it, if known
    std::vector<std::int32_t> earlier_owners = {};  ///< of `repartition`
    std::vector<double> costs = {};                 ///< of each earlier part, or none
    std::function<Mesh()> read_again = {};          ///< the same mesh once more, cheaply; or nothing
};

/// Knows the stages of `cut_and_save` and the one before it, `read`.
StageTimer cut_timer();

/// A report that knows what is cut and how, and nothing of the result.
PartitionReport report_on(const std::string& source, const CutArguments& arguments, std::int64_t num_cells, std::int64_t num_points);

/// What a manifest says of a cut, but for its source: from the report and the arguments.
ShardsInfo shards_info(const PartitionReport& report, const CutArguments& arguments);

/// Graph, cut, ghosts, shards on disk, report. The timer's stages go on. The mesh's cells are let go of while they are not needed, if
/// `source.read_again` can bring them back.
PartitionReport cut_and_save(Mesh& mesh, const MeshSource& source, const CutArguments& arguments, StageTimer& timer);

/// As asked for: text or JSON on stdout, a CSV file.
void print_report(const PartitionReport& report, const CutArguments& arguments);

}  // namespace meshard
