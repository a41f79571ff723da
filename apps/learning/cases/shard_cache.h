// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_list.h"
#include "apps/learning/cases/computed_inputs.h"

#include <cstdint>
#include <filesystem>
#include <functional>

namespace meshard {

/// A folder that keeps cases cut into shards, for this run and for others:
///
///     ID-0123456789abcdef/     shards folder of a case; the digits are of a hash of all that it depends on: the source's content, how and into how
///                              many parts it was cut, with which seed. Whatever differs lies in a folder of its own.
///     sources/                 what is known of the sources (source_hash.h)
///     locks/                   empty files: who cuts a case holds the lock of its folder's name (file_lock.h)
///
/// Any number of processes may use it at once. A case's folder appears complete or not at all, and is never changed; whoever finds it complete reads
/// it without asking. A process that was killed leaves `ID-....cutting-<host>-<process>`, which the next that cuts this case removes. Nothing else is
/// ever removed.
struct ShardCache {
    std::filesystem::path folder;
    std::int64_t num_parts = 1;
    std::int64_t seed = 0;
    bool verify_sources = false;   ///< reads every source whole, in place of trusting its size, time and a sample
    ComputedInputs computed = {};  ///< what the shards hold besides the arrays of the case's file
};

/// `source_hash` of a case, noted in the cache; of one with a wall a hash of both. @throws IoError naming the case.
std::uint64_t hash_of(const CaseSource& source, const ShardCache& cache);

/// Where the shards of a case with this hash lie, or would.
std::filesystem::path shards_path(const CaseSource& source, std::uint64_t hash, const ShardCache& cache);

/// Sees to it that the shards are there: cuts the case with METIS and without ghosts, unless they are complete. An earlier version's folder
/// `ID_in_PARTS` that holds the same is renamed.
/// @param before_cutting   called if the case is going to be cut
/// @return false if another process holds the lock and cuts.
/// @throws IoError, InvalidInput as reading, cutting and writing do; the message names the case or its file.
bool try_prepare_shards(const CaseSource& source, std::uint64_t hash, const ShardCache& cache, const std::function<void()>& before_cutting);

/// The shards folder of a case, complete; waits while another process cuts it.
std::filesystem::path prepare_shards(const CaseSource& source, const ShardCache& cache);

}  // namespace meshard
