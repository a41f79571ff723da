// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/steps/run_cases.h"

#include <cstdint>

namespace meshard {

/// How fast a run's training cases come from the disk, without any step. Of all ranks together, which read at once.
struct DataRates {
    std::int64_t num_cases = 0;
    std::int64_t num_points = 0;  ///< of which the loader gives rows
    std::int64_t row_bytes = 0;   ///< of these rows
    std::int64_t file_bytes = 0;  ///< of all files of these cases
    // Seconds, the median of the repetitions, of the slowest rank:
    double loader_seconds = 0;         ///< nothing in the system's cache
    double cached_loader_seconds = 0;  ///< all files in the cache, if they fit
    double disk_seconds = 0;           ///< the files from beginning to end in pieces of 8 MiB, nothing in the cache
};

/// Takes the cases of an epoch as training does, one after the other, and reads the same files plainly; the two alternate. Collective over all ranks.
/// @param most   cases of a data group at most; 0: all
DataRates measure_data(const RunCases& cases, const TrainingRunConfig& config, const CaseLists& lists, std::int64_t most, int num_repeats,
                       const std::shared_ptr<const DeviceMesh>& device_mesh);

}  // namespace meshard
