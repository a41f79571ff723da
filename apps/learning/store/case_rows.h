// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_tensors.h"
#include "apps/learning/store/case_store.h"
#include "apps/learning/store/point_draws.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace meshard {

/// Which rows a rank has of a case.
enum class RowOrder : std::uint8_t {
    Parts,  ///< those of its parts, which lie together in space: a compact run of parts, balanced by their rows
    Ids     ///< an even block of ids: the whole's rows then lie in the same order on any number of ranks
};

/// A rank of as many as a case is spread over.
struct RankOfCase {
    std::int64_t rank = 0, num_ranks = 1;
    RowOrder order = RowOrder::Parts;
};

/// Which of a case's rows are read.
struct RowChoice {
    std::vector<std::int64_t> ids;   ///< ascending
    std::vector<PlaceRange> ranges;  ///< where they are stored (`StoredOrder`), maybe among others, if they lie together; else nothing
};

/// What is read of a rank's rows.
struct RowReading {
    const RowChoice* choice = nullptr;  ///< none: all
    bool with_measures = false;
    bool in_locked_memory = false;  ///< the tensors lie in page-locked memory, from which devices copy without a wait
};

/// A rank's rows of a case, ids ascending.
struct CaseRows {
    at::Tensor told;                ///< (rows, numbers that a point is told), float32
    at::Tensor target;              ///< (rows, channels), float32, in physical units
    at::Tensor measures;            ///< (rows, 1), float32: area or volume over the case's mean; undefined where they are not read
    std::vector<std::int64_t> ids;  ///< in the whole case, or where rows were chosen, places among those

    std::int64_t num_rows() const { return static_cast<std::int64_t>(ids.size()); }
};

/// Rows of a case that each rank has, if all are read.
Extents rows_of_ranks(const StoredCase& stored, std::int64_t num_ranks, RowOrder order);

/// Bytes of what `read_rows` returns of all rows, on the rank that has most.
std::int64_t bytes_of_rows(const StoredCase& stored, std::int64_t num_ranks, RowOrder order, bool with_measures);

/// Reads a rank's rows; without messages, so that any thread may. What is read is compared with what was written by its hashes, in
/// cases that earlier versions stored only where all rows are read.
/// @throws IoError naming the file that is missing or damaged.
CaseRows read_rows(const StoredCase& stored, const RankOfCase& rank, const RowReading& reading = {});

/// The files that this rank reads of a case.
std::vector<std::filesystem::path> files_of_rank(const StoredCase& stored, const RankOfCase& rank, bool with_measures);

/// These files are there, whole and of this case. @throws IoError naming the one that is not.
void check_files(const StoredCase& stored, const RankOfCase& rank, bool with_measures);

/// A case over the ranks of a domain from what each has read. Collective where rows were chosen.
/// @param num_chosen   rows that were chosen, of all ranks; none: all
CaseTensors case_tensors(CaseRows rows, const StoredCase& stored, const CaseSource& source, const DataConfig& data, RowOrder order,
                         const std::shared_ptr<const DeviceMesh>& domain, std::optional<std::int64_t> num_chosen = std::nullopt);

}  // namespace meshard
