// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/partition_report.h"
#include "apps/stage_timer.h"
#include "io/manifest.h"
#include "partition/ghost_graph.h"
#include "partition/mesh.h"
#include "partition/partitioner.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace meshard {

/// What `partition` and `repartition` ask their users, as text where it is checked later.
struct CutArguments {
    std::string output;
    std::int32_t num_parts = 0;
    bool has_num_parts = false;   ///< whether it was given
    std::string method = "metis"; ///< a name, `file:PATH` or `array:NAME`
    std::string levels;
    std::string objective = "both";
    std::string weights;
    std::string capacities;
    std::string ghosts = "face";
    std::int32_t ghost_layers = 1;
    double imbalance = 1.03;
    std::int32_t seed = 0;
    bool quality = false;
    bool refine = false;
    bool no_refine = false;
    bool contiguous = false;
    bool allow_empty = false;
    bool dry_run = false;
    std::string preview;
    std::string csv;
    std::string compress = "none"; ///< of the pieces
    std::string dump;   ///< kinds of `dump_partition`
    std::int32_t threads = 1;
    std::int64_t max_memory = 0; ///< bytes that a process may take; 0: no bound
    bool json = false;
};

void add_cut_options(CLI::App& app, CutArguments& arguments);

/// Checks what can be checked without the mesh, and fills in what follows from it: the number of parts from the levels.
/// @throws UsageError
void check_cut_arguments(CutArguments& arguments);

/// Names of what is to be balanced; none where all rows count the same.
std::vector<std::string> weight_names(const CutArguments& arguments);

/// NaN among the values of an array's rows from `begin` to `end`, and the warning of so many.
std::int64_t count_nan(const DataArray& array, std::int64_t begin, std::int64_t end);
std::string nan_text(const DataArray& array, const std::string& group, std::int64_t num_nan);

/// The warning of a cell with a facet of too many cells.
std::string crowded_text(std::int64_t cell);

/// Finds out before any work what would stop the last step. @throws IoError
void check_output_folder(const std::string& output);

/// Where a mesh came from.
struct MeshSource {
    std::string name;  ///< as the user gave it
    std::string path;  ///< of the file that was cut first, for the manifest
    std::string hash = {};  ///< of it, if known
    std::vector<std::int32_t> earlier_owners = {}; ///< of `repartition`
    std::vector<double> costs = {};                ///< of each earlier part, or none
    std::function<Mesh()> read_again = {};         ///< the same mesh once more, cheaply; or nothing
};

/// Knows the stages of `cut_and_save` and the one before it, `read`.
StageTimer cut_timer();

/// A report that knows what is cut and how, and nothing of the result.
PartitionReport report_on(const std::string& source, const CutArguments& arguments, std::int64_t num_cells, std::int64_t num_points);

/// Graph, cut, ghosts, shards on disk, report. The timer's stages go on. The mesh's cells are let go of while they are not needed, if
/// `source.read_again` can bring them back.
PartitionReport cut_and_save(Mesh& mesh, const MeshSource& source, const CutArguments& arguments, StageTimer& timer);

/// As asked for: text or JSON on stdout, a CSV file.
void print_report(const PartitionReport& report, const CutArguments& arguments);

} // namespace meshard
