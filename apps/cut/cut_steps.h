// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/cut/cut_options.h"
#include "apps/cut/partition_report.h"
#include "apps/cut/shard_sink.h"
#include "apps/program/stage_timer.h"
#include "partition/mesh/mesh.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// A cut that is being made, as its steps see it.
struct CutJob {
    const CutArguments& arguments;  ///< with the number of parts
    /// In place of a method: the parts of this rank's rows, which are an even share in the file's order. `cut` takes it.
    std::optional<std::vector<std::int32_t>> given;
    PartitionReport& report;
    StageTimer& timer;
};

/// What `cut_and_save` does with a mesh, step after step: on a mesh held whole (whole_steps.h), or window by window on any number of ranks (window_steps.h).
/// All steps are collective. What they report is complete on rank 0.
class CutSteps {
public:
    virtual ~CutSteps() = default;

    /// The mesh, its cells perhaps left out.
    virtual const Mesh& mesh() const = 0;
    virtual std::int64_t num_cells() const = 0;
    virtual void release_pages() const {}  ///< of the mesh's file

    /// Finds who neighbours whom. @throws InvalidInput for coordinates that are no numbers, UsageError if there is too little memory
    virtual void find_graph(CutJob& job) = 0;

    /// Who owns what. Reports the method that was used, and imbalances.
    virtual void cut(CutJob& job) = 0;

    /// Ghosts, and how good the cut is. Reports quality, and parts that are in pieces though asked not to be.
    virtual void find_ghosts(CutJob& job) = 0;

    /// A cell with a facet of too many cells, by its number in the file; -1 if none. After `find_ghosts`.
    virtual std::int64_t crowded_cell() const = 0;

    /// Gives each part to the sink of the rank that its turn falls on.
    virtual void give_parts(CutJob& job, ShardSink& sink) = 0;

    /// Writes the cut for other programs (PartitionDump) into a folder.
    virtual void dump(CutJob& job, const std::filesystem::path& folder) = 0;

    /// Draws the parts in colours.
    virtual void draw(CutJob& job, const std::filesystem::path& png) = 0;

    /// What the manifest says of the way these steps went, beside what was asked for.
    virtual std::vector<std::pair<std::string, std::string>> options() const { return {}; }
};

}  // namespace meshard
