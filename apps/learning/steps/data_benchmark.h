// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/steps/run_cases.h"

#include <cstdint>

namespace meshard {

/// How fast a run's training cases come from the disk, without any training step. Numbers are of all ranks, which read
/// at once.
struct DataRates {
    std::int64_t num_cases = 0;
    std::int64_t num_points = 0;  ///< points whose rows the loader returned
    std::int64_t row_bytes = 0;   ///< bytes of these rows
    std::int64_t file_bytes = 0;  ///< bytes of all files of these cases
    // Each time is in seconds, of the slowest rank, the median of the repetitions.
    double loader_seconds = 0;         ///< with an empty system cache
    double cached_loader_seconds = 0;  ///< with all files in the cache, if they fit
    double disk_seconds = 0;           ///< for reading the files in pieces of 8 MiB, with an empty cache
};

/// Loads the cases of an epoch as training does, and, alternating with that, reads the same files plainly. Collective
/// over all ranks.
/// @param most   cases of a data group at most; 0: all
DataRates measure_data(const RunCases& cases, const TrainingRunConfig& config, const CaseLists& lists,
                       std::int64_t most, int num_repeats, const std::shared_ptr<const DeviceMesh>& device_mesh);

}  // namespace meshard
