// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/cases/case_list.h"
#include "apps/settings/training_config.h"
#include "models/layers/normalizer.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace meshard {

/// A folder that keeps cases as training reads them, for this run and for others: of each point what it is told and what is to be predicted, in float32.
///
///     ID-0123456789abcdef/     a case; the digits are of a hash of all that it depends on: its shards, and the settings that say what a point is told and
///                              what is predicted. Whatever differs lies in a folder of its own.
///         case.json            number of rows and bytes of each part, the fields' channels, bounds of what points are told, mean and deviation of each target
///         part_0000.rows       the rows that part 0 owns (row_file.h), in the order of `StoredOrder`
///         figures.json         sums over the true fields, by which a run checks its data (apps/evaluation/case_figures.h); may be missing
///     locks/                   empty files: who stores a case holds the lock of its folder's name (kept_folder.h)
struct CaseStore {
    std::filesystem::path folder;
    std::filesystem::path other_folder;  ///< where `folder` may only be read: for cases that it lacks; empty: none
    DataConfig data;
};

struct StoredPart {
    std::string file;
    std::int64_t num_rows = 0;
    std::int64_t num_bytes = 0;
};

/// What case.json says.
struct StoredCase {
    std::filesystem::path folder;
    std::string case_id;
    std::string key;
    std::int64_t num_rows = 0;
    std::int64_t num_inputs = 0;         ///< numbers that a point is told
    std::vector<std::int64_t> channels;  ///< of each field
    std::vector<StoredPart> parts;
    std::vector<ChannelStatistics> statistics;  ///< of the targets, a part
    std::vector<double> lowest, highest;        ///< of each number that a point is told, over all points

    std::int64_t num_targets() const;
    std::vector<std::int64_t> rows_of_parts() const;
    std::int64_t num_bytes() const;
};

/// Sees to it that the case whose shards lie in `shards` is stored, one part after the other, unless it is complete.
/// @param before_storing   called if that takes work
/// @return false if another process is at it.
/// @throws IoError, InvalidInput naming the case: a field that is missing or not finite, a folder that cannot be written.
bool try_store_case(const CaseStore& store, const CaseSource& source, const std::filesystem::path& shards, const std::function<void()>& before_storing);

/// Reads what is stored of it. @throws IoError if it is not, or is damaged.
StoredCase open_stored_case(const CaseStore& store, const CaseSource& source, const std::filesystem::path& shards);

/// The same; waits while another process stores it.
StoredCase store_case(const CaseStore& store, const CaseSource& source, const std::filesystem::path& shards);

}  // namespace meshard
