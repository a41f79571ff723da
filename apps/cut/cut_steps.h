// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/console/stage_timer.h"
#include "apps/cut/cut_options.h"
#include "apps/cut/partition_report.h"
#include "apps/cut/shard_sink.h"
#include "partition/mesh/joined_points.h"
#include "partition/mesh/mesh.h"
#include "partition/mesh/mesh_graph.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// Arguments and results of a cut, shared by its steps.
struct CutJob {
    const CutArguments& arguments;  ///< with the final number of parts
    /// A given partition instead of a method: the owners of this rank's equal share of the rows, in the file's order.
    /// `cut` moves it out.
    std::optional<std::vector<std::int32_t>> given;
    PartitionReport& report;
    StageTimer& timer;
};

/// The steps of `cut_and_save`: on a mesh that is whole in memory (whole_steps.h), or window by window on any number of
/// ranks (window_steps.h). All steps are collective. The report is complete on rank 0.
class CutSteps {
public:
    virtual ~CutSteps() = default;

    /// Returns the mesh, possibly without its cells.
    virtual const Mesh& mesh() const = 0;
    virtual std::int64_t num_cells() const = 0;
    virtual void release_pages() const {}  ///< frees mapped pages of the mesh's file

    /// Builds the graph of neighbours.
    /// @throws InvalidInput for coordinates that are not finite, UsageError if there is too little memory
    virtual void find_graph(CutJob& job) = 0;

    /// Assigns each row to a part. Reports the method and the imbalances.
    virtual void cut(CutJob& job) = 0;

    /// Finds ghosts and measures the cut. Reports the quality, and with --contiguous the parts that are not connected.
    virtual void find_ghosts(CutJob& job) = 0;

    /// Returns the facets that three or more cells share, by the file's cell numbers. Call it after `find_ghosts`.
    virtual FacetCrowds crowds() const = 0;

    /// Returns what keeps cells apart; for a mesh in windows, only isolated cells. Call it after `find_ghosts`.
    virtual UnjoinedCells unjoined_cells() const = 0;

    /// Passes each part to the sink of one rank.
    virtual void extract_parts(CutJob& job, ShardSink& sink) = 0;

    /// Writes the cut for other programs (PartitionDump) into a folder.
    virtual void dump(CutJob& job, const std::filesystem::path& folder) = 0;

    /// Writes a picture of the parts in colours.
    virtual void draw(CutJob& job, const std::filesystem::path& png) = 0;

    /// Returns options of these steps for the manifest, besides those of the command line.
    virtual std::vector<std::pair<std::string, std::string>> options() const { return {}; }
};

}  // namespace meshard
