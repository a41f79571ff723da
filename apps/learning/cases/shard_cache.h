// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_list.h"
#include "apps/learning/cases/computed_inputs.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>

namespace meshard {

/// A folder that keeps cases cut into shards, for this and other runs:
///
///     ID-0123456789abcdef/     shards folder of a case; the digits are a hash of the source's content, the way of
///                              cutting, the number of parts and the seed; another cut lies in another folder
///     sources/                 what is known of the sources (source_hash.h)
///     locks/                   empty files; a process locks the one with the folder's name while it cuts the case
///                              (file_lock.h)
///
/// Any number of processes may use it at once. A case's folder appears complete or not at all and never changes, so a
/// process that finds it complete reads it without a lock. A process that was killed leaves
/// `ID-....cutting-<host>-<process>`, which the next process that cuts the case removes. Nothing else is ever removed.
struct ShardCache {
    std::filesystem::path folder;
    std::int64_t num_parts = 1;
    std::int64_t seed = 0;
    bool verify_sources = false;   ///< hashes every source whole instead of trusting its size, time and a sample
    ComputedInputs computed = {};  ///< inputs that the shards hold besides the arrays of the file
    /// Steps of runs have the arrays of which their meshes are made, and the cuts of the runs; else both are null.
    std::shared_ptr<const StateArrays> states = {};
    std::shared_ptr<RunCuts> run_cuts = {};
};

/// Returns the `source_hash` of a case, noted in the cache; for a case with a wall, a hash of both, and for a step of a
/// run one of its states. @throws IoError naming the case.
std::uint64_t hash_of(const CaseSource& source, const ShardCache& cache);

/// Returns where the shards of a case with this hash lie or would lie.
std::filesystem::path shards_path(const CaseSource& source, std::uint64_t hash, const ShardCache& cache);

/// Cuts the case with METIS and without ghosts, unless its shards are complete; a step of a run as the run's first
/// state is cut. An earlier version's folder `ID_in_PARTS` that holds the same is renamed instead.
/// @param before_cutting   called before the case is cut
/// @return false if another process holds the lock and cuts.
/// @throws IoError, InvalidInput as reading, cutting and writing do; the message names the case or its file.
bool try_prepare_shards(const CaseSource& source, std::uint64_t hash, const ShardCache& cache,
                        const std::function<void()>& before_cutting);

}  // namespace meshard
