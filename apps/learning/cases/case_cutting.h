// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_list.h"
#include "apps/learning/cases/shard_cache.h"
#include "apps/learning/settings/training_log.h"
#include "sharding/ranks/rank_group.h"

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

namespace meshard {

/// Deals items to ranks, the largest first, each to the rank with the least load, or the lowest of several such ranks.
std::vector<int> deal_by_size(std::span<const std::int64_t> sizes, int num_ranks);

/// Finds for each rank the lowest rank that sees the same folder: ranks of several hosts may share a disk, or each have
/// their own under the same name. The ranks leave files there for a moment. A rank that may not write there counts as
/// alone, unless it sees another's file. Collective.
std::vector<int> lowest_ranks_with(const std::filesystem::path& folder, const RankGroup& ranks);

/// Makes something of a case's shards once they are cut. Returns false while another process makes it; calls `before`
/// before it begins.
using UseOfShards = std::function<bool(const CaseSource& source, const std::filesystem::path& shards,
                                       const std::function<void()>& before)>;

/// Cuts those cases that are not in the cache, each by one of the ranks that see the same folder, and calls `use` for
/// each, if given. Returns the shards folders of all cases as this rank sees them. Collective over `ranks`, each with
/// the same cases.
///
/// Ranks that are done wait for the others while those live, however long they cut, and the log names them. A signal
/// (`stop_requested` on any rank) ends the work after the cases in hand.
/// @throws IoError, InvalidInput as `try_prepare_shards`; InvalidInput on every rank if hosts have different sources or
/// shards; CommunicationError if a rank ends; Interrupted on every rank.
std::vector<std::filesystem::path> cut_cases(const std::vector<CaseSource>& cases, const ShardCache& cache,
                                             const RankGroup& ranks, TrainingLog& log,
                                             const volatile std::sig_atomic_t& stop_requested,
                                             const UseOfShards& use = {});

}  // namespace meshard
