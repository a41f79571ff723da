// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_tensors.h"
#include "apps/learning/store/case_store.h"
#include "apps/learning/store/point_draws.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace meshard {

/// Which rows of a case a rank has.
enum class RowOrder : std::uint8_t {
    Parts,  ///< a compact run of the case's parts, balanced by their rows
    Ids     ///< an even block of ids, so that the whole has the same order on any number of ranks
};

/// One of the ranks over which a case is spread.
struct RankOfCase {
    std::int64_t rank = 0;
    Shares shares = {1};  ///< of all the ranks; by RowOrder::Ids they count as equal
    RowOrder order = RowOrder::Parts;

    std::int64_t num_ranks() const { return std::ssize(shares); }
};

/// Which of a case's rows to read.
struct RowChoice {
    std::vector<std::int64_t> ids;  ///< ascending
    /// Where they are stored (`StoredOrder`), maybe among others; empty if they do not lie together.
    std::vector<PlaceRange> ranges;
};

/// How to read a rank's rows.
struct RowReading {
    const RowChoice* choice = nullptr;  ///< null reads all rows
    bool with_measures = false;
    bool in_locked_memory = false;  ///< page-locked tensors are copied to a device without a wait
};

/// A rank's rows of a case, with ascending ids.
struct CaseRows {
    at::Tensor told;                ///< (rows, numbers a point), float32: the points' inputs
    at::Tensor target;              ///< (rows, channels), float32, in physical units
    at::Tensor measures;            ///< (rows, 1), float32: area or volume over the case's mean; undefined if not read
    std::vector<std::int64_t> ids;  ///< in the whole case, or, where rows were chosen, positions among the chosen

    std::int64_t num_rows() const { return std::ssize(ids); }
};

/// Returns how many rows of a case each rank has when all are read.
Extents rows_of_ranks(const StoredCase& stored, const Shares& shares, RowOrder order);

/// Returns the bytes that `read_rows` takes for all rows, on the rank with the most.
std::int64_t bytes_of_rows(const StoredCase& stored, const Shares& shares, RowOrder order, bool with_measures);

/// Reads a rank's rows. It does not communicate, so any thread may call it. The data are compared with their hashes; in
/// cases that earlier versions stored, only where all rows are read.
/// @throws IoError naming the file that is missing or damaged.
CaseRows read_rows(const StoredCase& stored, const RankOfCase& rank, const RowReading& reading = {});

/// Lists the files that this rank reads of a case.
std::vector<std::filesystem::path> files_of_rank(const StoredCase& stored, const RankOfCase& rank, bool with_measures);

/// Checks that these files are there, whole and of this case. @throws IoError naming the one that is not.
void check_files(const StoredCase& stored, const RankOfCase& rank, bool with_measures);

/// Makes a case over the ranks of a domain from what each rank has read. Collective where rows were chosen.
/// @param shares, order   by which they were read
/// @param num_chosen   rows that were chosen, of all ranks; none: all
CaseTensors case_tensors(CaseRows rows, const StoredCase& stored, const CaseSource& source, const DataConfig& data,
                         const Shares& shares, RowOrder order, const std::shared_ptr<const DeviceMesh>& domain,
                         std::optional<std::int64_t> num_chosen = std::nullopt);

}  // namespace meshard
