// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_list.h"
#include "apps/learning/settings/training_config.h"
#include "apps/learning/store/area_draws.h"
#include "apps/learning/store/page_hashes.h"
#include "apps/learning/store/row_measures.h"
#include "io/bytes/mapped_file.h"
#include "models/layers/normalizer.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// A folder that keeps cases as training reads them, for this run and for others: of each point what it is told and what is to be predicted, in float32.
///
///     ID-0123456789abcdef/     a case; the digits are of a hash of all that it depends on: its shards, and the settings that say what a point is told and
///                              what is predicted. Whatever differs lies in a folder of its own.
///         case.json            number of rows and bytes of each part, the fields' channels, bounds of what points are told, mean and deviation of each target,
///                              sums of areas or volumes
///         part_0000.rows       the rows that part 0 owns (row_file.h), in the order of `StoredOrder`
///         measures.f32         areas or volumes of all rows over their mean (row_measures.h), in the order of `StoredOrder`; not where there are none
///         hashes.u64           hashes of the pages of all these files (page_hashes.h); not in cases that earlier versions stored
///         figures.json         sums over the true fields, by which a run checks its data (apps/learning/evaluation/case_figures.h); may be missing
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
    std::int64_t first_page = 0;  ///< in the case's page hashes
};

/// Areas or volumes of a case's rows.
struct StoredMeasures {
    MeasureKind kind = MeasureKind::None;
    double mean = 0;                    ///< over all rows, in the unit of the case's file
    std::string hash;                   ///< of the file
    std::int64_t first_page = 0;        ///< in the case's page hashes
    std::vector<BlockMeasures> blocks;  ///< of `StoredOrder`; none where there is no file: no row has one
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
    StoredMeasures measures;
    std::shared_ptr<const PageHashes> page_hashes;  ///< null in cases that earlier versions stored

    std::int64_t num_targets() const;
    std::vector<std::int64_t> rows_of_parts() const;
    std::int64_t num_bytes() const;          ///< of rows and measures
    std::int64_t num_measure_bytes() const;  ///< of the file of measures, 0 where there is none
};

/// Sees to it that the case whose shards lie in `shards` is stored, one part after the other, unless it is complete.
/// @param before_storing   called if that takes work
/// @return false if another process is at it.
/// @throws IoError, InvalidInput naming the case: a field that is missing or not finite, a folder that cannot be written.
bool try_store_case(const CaseStore& store, const CaseSource& source, const std::filesystem::path& shards, const std::function<void()>& before_storing);

/// Reads what is stored of it. @throws IoError if it is not, or is damaged; UnknownVersion.
StoredCase open_stored_case(const CaseStore& store, const CaseSource& source, const std::filesystem::path& shards);

/// The same; waits while another process stores it.
StoredCase store_case(const CaseStore& store, const CaseSource& source, const std::filesystem::path& shards);

/// Areas or volumes of all rows of a case over their mean, in the order of `StoredOrder`, mapped.
class MeasureFile {
public:
    /// @throws IoError naming the file if it is missing or cut short; InvalidInput naming the case if its rows have neither
    explicit MeasureFile(const StoredCase& stored);

    /// Reads all of it the first time. @throws IoError naming the file if its bytes are not those that were written
    std::span<const float> values() const;

    static std::filesystem::path path_of(const StoredCase& stored) { return stored.folder / "measures.f32"; }

private:
    const StoredCase& stored_;
    std::shared_ptr<const MappedFile> file_;
};

}  // namespace meshard
