// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/console/stage_timer.h"
#include "apps/cut/cut_options.h"
#include "apps/cut/cut_steps.h"
#include "apps/cut/partition_report.h"
#include "partition/mesh/mesh.h"
#include "sharding/messages/rank_messages.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace meshard {

/// Where a mesh comes from.
struct MeshSource {
    std::string name;                               ///< as given by the user
    std::string path;                               ///< the original mesh file, for the manifest
    std::string hash = {};                          ///< hash of that file; empty if it is not known
    std::vector<std::int32_t> earlier_owners = {};  ///< part of each row in the folder that `repartition` reads
    std::vector<double> costs = {};                 ///< cost of each earlier part; may be empty
    std::function<Mesh()> read_again = {};          ///< reads the same mesh again at little cost; may be empty
};

/// Returns a timer with the stages of `cut_and_save` and the stage before them, `read`.
StageTimer cut_timer();

/// Runs all steps and writes the shards. Collective; on ranks other than 0 the report is incomplete. `timer` gets the
/// stages.
PartitionReport cut_and_save(CutSteps& steps, const MeshSource& source, const CutArguments& arguments,
                             RankMessages& messages, StageTimer& timer);

/// Prints text or JSON to stdout, and writes a CSV file, as the arguments say.
void print_report(const PartitionReport& report, const CutArguments& arguments);

}  // namespace meshard
