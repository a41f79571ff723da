// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/cut/cut_options.h"
#include "apps/cut/partition_report.h"
#include "apps/program/stage_timer.h"
#include "sharding/messages/rank_messages.h"

#include <string>

namespace meshard {

/// `partition` for meshes that no process holds as a whole: because of --max-memory, or because several ranks share the work.
///
/// Collective. The cells go in the order of a Hilbert curve and are cut into windows (curve_windows.h). Small clusters of cells
/// within a window are blocks; the graph of the blocks, with weights, is cut on rank 0 by the method asked for, in levels and in whole parts too; then each
/// window moves single cells, those at its border excepted, within its share of the room that parts have. Ghosts, points and pieces follow part by part. Of a
/// point cloud the cells are its points. The result depends on the mesh, the options and the memory allowed, not on the number of ranks. No rank holds more
/// than its windows and the parts that it writes, beside one bit for each point of the mesh.
///
/// @return the report; on ranks other than 0 an incomplete one.
/// @throws UsageError for options that it does not know, or too little memory; IoError as MappedMesh.
PartitionReport cut_in_windows(const std::string& file, const CutArguments& arguments, RankMessages& messages, StageTimer& timer);

/// Bytes of a size such as 800M, 1G or 1.5GiB (powers of 1024). @throws UsageError
std::int64_t parse_memory_size(const std::string& text);

}  // namespace meshard
