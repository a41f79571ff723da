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

/// A folder that keeps cases as training reads them, for this and other runs: the inputs and targets of each point,
/// float32.
///
///     ID-0123456789abcdef/     a case; the digits are a hash of its shards and of the settings that choose inputs
///                              and targets, so that another choice lies in another folder
///         case.json            rows and bytes of each part, channels of the fields, bounds of the inputs, mean
///                              and deviation of each target, sums of areas or volumes
///         part_0000.rows       the rows that part 0 owns (row_file.h), in the order of `StoredOrder`
///         measures.f32         areas or volumes of all rows over their mean (row_measures.h), in the order of
///                              `StoredOrder`; missing if the rows have none
///         hashes.u64           hashes of the pages of all these files (page_hashes.h); missing in cases that
///                              earlier versions stored
///         figures.json         sums over the true fields, by which a run checks its data
///                              (apps/learning/evaluation/case_figures.h); may be missing
///     locks/                   empty files; a process locks the one with the folder's name while it stores the
///                              case (kept_folder.h)
struct CaseStore {
    std::filesystem::path folder;
    std::filesystem::path other_folder;  ///< for cases that `folder` lacks while it is read-only; empty: none
    DataConfig data;
};

struct StoredPart {
    std::string file;
    std::int64_t num_rows = 0;
    std::int64_t num_bytes = 0;
    std::int64_t first_page = 0;  ///< index of its first page in the case's page hashes
};

/// Areas or volumes of a case's rows.
struct StoredMeasures {
    MeasureKind kind = MeasureKind::None;
    double mean = 0;              ///< over all rows, in the unit of the case's file
    std::string hash;             ///< hash of the file's content
    std::int64_t first_page = 0;  ///< index of its first page in the case's page hashes
    /// Sums of the blocks of `StoredOrder`; empty if no row has a measure, and there is no file.
    std::vector<BlockMeasures> blocks;
};

/// The content of case.json.
struct StoredCase {
    std::filesystem::path folder;
    std::string case_id;
    std::string key;
    std::int64_t num_rows = 0;
    std::int64_t num_inputs = 0;         ///< numbers a point
    std::vector<std::int64_t> channels;  ///< number of channels of each field
    std::vector<StoredPart> parts;
    std::vector<ChannelStatistics> statistics;  ///< the targets' statistics, one entry for each part
    std::vector<double> lowest, highest;        ///< bounds of each input over all points
    /// The inputs' statistics, one entry for each part; only of steps of runs and of grids.
    std::vector<ChannelStatistics> told_statistics = {};
    std::vector<std::int64_t> extents = {};            ///< of a regular grid, slowest direction first; empty: no grid
    std::int64_t num_counted = 0;                      ///< rows of a regular grid that count (`data.mask`)
    std::vector<std::vector<double>> categories = {};  ///< what each array of `data.categories` has, ascending
    StoredMeasures measures;
    std::shared_ptr<const PageHashes> page_hashes;  ///< null in cases that earlier versions stored

    std::int64_t num_targets() const;
    std::vector<std::int64_t> rows_of_parts() const;
    std::int64_t num_bytes() const;          ///< bytes of rows and measures
    std::int64_t num_measure_bytes() const;  ///< bytes of the file of measures, 0 if there is none
};

/// Stores the case whose shards lie in `shards`, one part after the other, unless it is stored already.
/// @param before_storing   called before a case is stored, not if it is there
/// @return false if another process is storing it.
/// @throws IoError, InvalidInput naming the case: a field that is missing or not finite, a folder that cannot be
/// written.
bool try_store_case(const CaseStore& store, const CaseSource& source, const std::filesystem::path& shards,
                    const std::function<void()>& before_storing);

/// Opens a stored case. @throws IoError if it is missing or damaged; UnknownVersion.
StoredCase open_stored_case(const CaseStore& store, const CaseSource& source, const std::filesystem::path& shards);

/// The mapped file of areas or volumes of all rows of a case over their mean, in the order of `StoredOrder`.
class MeasureFile {
public:
    /// @throws IoError naming the file if it is missing or cut short; InvalidInput naming the case if its rows have no
    /// measures
    explicit MeasureFile(const StoredCase& stored);

    /// Compares the whole file with its hashes. @throws IoError naming the file if its bytes are not those that were
    /// written
    std::span<const float> values() const;

    static std::filesystem::path path_of(const StoredCase& stored) { return stored.folder / "measures.f32"; }

private:
    const StoredCase& stored_;
    std::shared_ptr<const MappedFile> file_;
};

}  // namespace meshard
