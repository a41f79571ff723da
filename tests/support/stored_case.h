// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/shard_cache.h"
#include "apps/learning/store/case_store.h"

#include <chrono>
#include <filesystem>
#include <thread>

namespace meshard {

/// Cuts a case if needed and returns its shards folder; waits while another process cuts it.
inline std::filesystem::path prepare_shards(const CaseSource& source, const ShardCache& cache)
{
    const auto hash = hash_of(source, cache);
    while (!try_prepare_shards(source, hash, cache, [] {})) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return shards_path(source, hash, cache);
}

/// Stores a case if it is not stored, and opens it; waits while another process stores it.
inline StoredCase store_case(const CaseStore& store, const CaseSource& source, const std::filesystem::path& shards)
{
    while (!try_store_case(store, source, shards, [] {})) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return open_stored_case(store, source, shards);
}

}  // namespace meshard
