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

/// Who takes which item: the largest first, each to the rank with least to do (of several the lowest).
std::vector<int> deal_by_size(std::span<const std::int64_t> sizes, int num_ranks);

/// For each rank the lowest rank that sees the same folder, found out by files that the ranks leave there for a moment: ranks of several hosts may
/// share a disk, or have one each under the same name. A rank that may not write there counts as alone, unless it sees another's file. Collective.
std::vector<int> lowest_ranks_with(const std::filesystem::path& folder, const RankGroup& ranks);

/// What is made of the shards of a case in the same go. Returns false while another process is at it; calls `before` if it is work.
using UseOfShards = std::function<bool(const CaseSource& source, const std::filesystem::path& shards, const std::function<void()>& before)>;

/// Shards folders of all cases, where this rank finds them: those that are not in the cache are cut, each by one of the ranks that see the same
/// folder, and which uses them, too, if `use` is given. Collective over `ranks`; each brings the same cases.
///
/// Ranks that are done wait for the others as long as these live, however long they cut, and the log says for whom. A signal (`stop_requested` on any
/// rank) ends it after the cases in hand.
/// @throws IoError, InvalidInput as `try_prepare_shards`; InvalidInput on every rank if hosts have different sources or shards; CommunicationError if a
///         rank ends; Interrupted on every rank.
std::vector<std::filesystem::path> cut_cases(const std::vector<CaseSource>& cases, const ShardCache& cache, const RankGroup& ranks, TrainingLog& log,
                                             const volatile std::sig_atomic_t& stop_requested, const UseOfShards& use = {});

}  // namespace meshard
