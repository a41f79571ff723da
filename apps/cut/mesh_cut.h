// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/cut/cut_options.h"
#include "apps/cut/cut_steps.h"
#include "apps/cut/partition_report.h"
#include "apps/program/stage_timer.h"
#include "partition/mesh/mesh.h"
#include "sharding/messages/rank_messages.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace meshard {

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

/// Graph, cut, ghosts, shards on disk, report. Collective; on ranks other than 0 the report is incomplete. The timer's stages go on.
PartitionReport cut_and_save(CutSteps& steps, const MeshSource& source, const CutArguments& arguments, RankMessages& messages, StageTimer& timer);

/// As asked for: text or JSON on stdout, a CSV file.
void print_report(const PartitionReport& report, const CutArguments& arguments);

}  // namespace meshard
