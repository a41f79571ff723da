// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_list.h"
#include "apps/learning/grids/grid_case.h"
#include "apps/learning/store/case_rows.h"
#include "apps/learning/store/case_store.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace meshard {

/// How the ranks of a domain read the cases of a grid model: each its own block.
class GridReading {
public:
    /// @param blocks   the domain's ranks, by the directions in which they cut a grid
    /// @param stored   files of the same grids that are read in place of the cases' (`GridStore`), by the cases' ids
    GridReading(const TrainingRunConfig& config, std::shared_ptr<const DeviceMesh> blocks,
                std::map<std::string, std::filesystem::path> stored);

    /// Reads this rank's rows of a case, of a step of a run those of its states. Any thread may call it.
    /// @throws IoError, InvalidInput naming the case, as `GridFile::open`, `grid_rows`, `grid_layout` and `GridStates`
    GridRows read(const CaseSource& source) const;

    /// Makes a case of what each rank has read.
    CaseTensors tensors(const CaseRows& own, const StoredCase& known, const CaseSource& source) const;

    /// Describes cases: numbers of rows and channels, extents, statistics and bounds; there are no files. Each rank
    /// reads its blocks, and the statistics of all blocks are merged in the order of the ranks. Collective.
    /// @throws on all ranks, as `read`, and InvalidInput for a grid for which the model's arguments differ from those
    /// for `like`, or if that is null for the first grid
    std::vector<StoredCase> describe(const std::vector<CaseSource>& sources, const StoredCase* like) const;

    /// Returns the bytes of a case in memory, on the rank with the most.
    std::int64_t num_bytes(const StoredCase& known) const;

    /// Lays all grids out anew. No thread may be reading.
    /// @param shares   of the domain's ranks, in a row
    void share_out(const Shares& shares);

    /// Returns the shares of this case that the ranks would have: those given, to whole groups of rows, and where ranks
    /// cut several directions, the product of what they have along each.
    Shares attained(const Shares& shares, const StoredCase& known) const;

private:
    GridRows read_from(const std::filesystem::path& path, const CaseSource& source) const;
    const GridLayout& layout(const std::vector<std::int64_t>& extents, const std::string& where) const;
    void require_alike(const StoredCase& known, const std::string& where, const StoredCase& first) const;

    ModelConfig model_;
    DataConfig data_;
    std::shared_ptr<const DeviceMesh> blocks_;
    std::map<std::string, std::filesystem::path> stored_;
    Shares shares_;  // empty: equal ones
    mutable std::mutex mutex_;
    mutable std::map<std::vector<std::int64_t>, GridLayout> layouts_;  // by the extents
};

/// Returns how many ranks cut each direction of the cases' grids: what the configuration says, or where it leaves it
/// open and the model reads neighbours, that of `cut_of_grid` for the first case.
/// @throws IoError, InvalidInput naming the case, as `GridFile::open` and `extents_of`
std::vector<std::int64_t> domain_of_grids(const TrainingRunConfig& config, const CaseSource& first,
                                          std::int64_t num_ranks);

/// Returns the widths of a grid model that fits the cases. @param known   any of the cases
GridWidths grid_widths(const StoredCase& known, const DataConfig& data);

}  // namespace meshard
