// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_list.h"
#include "apps/learning/settings/training_config.h"
#include "sharding/ranks/rank_group.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace meshard {

/// A folder that keeps cases of grids in blocks, of which ranks read theirs whatever the cut:
///
///     ID-0123456789abcdef.zarr/   a group of Zarr arrays, those of `data.arrays`, `data.fields` and
///                                 `data.mask`, in chunks of nearly equal size, 64 places along each direction at most,
///                                 of images 512; a case itself. The digits are a hash of the arrays' names, of where
///                                 they are, and of the names, sizes and times of change of the source's files
///     locks/                      empty files; a process locks the one with the folder's name while it writes the case
///                                 (kept_folder.h)
///
/// A folder appears complete or not at all, and nothing is removed but what a stopped process left.
class GridStore {
public:
    explicit GridStore(const DataConfig& data);

    const std::filesystem::path& folder() const { return folder_; }

    /// Writes the cases that are not there; the ranks deal them among them, and wait for those that other processes
    /// write. Collective.
    /// @return the bytes of all cases
    /// @throws UnusableInput on all ranks, naming the case
    std::int64_t write(const std::vector<CaseSource>& cases, const RankGroup& ranks) const;

    /// Returns the folders of the cases that are there and made of the sources as they are now, by the cases' ids.
    std::map<std::string, std::filesystem::path> find(const std::vector<CaseSource>& cases) const;

    /// Says which cases `find` has found, and why others are read from their files; empty if the store is not named and
    /// has none of them.
    std::string said_of(const std::vector<CaseSource>& cases,
                        const std::map<std::string, std::filesystem::path>& stored) const;

private:
    std::filesystem::path path_of(const CaseSource& source) const;
    void write_case(const CaseSource& source, const std::filesystem::path& folder) const;

    std::filesystem::path folder_;
    std::vector<std::string> arrays_;  // their names or patterns, each once
    bool is_named_;                    // `data.store` says the folder
    bool on_cells_;
};

}  // namespace meshard
