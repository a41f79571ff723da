// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>

#include "apps/case_list.h"

namespace meshard {

/// The shards folder of a case below `cache`: cut into `num_parts` with METIS and without ghosts, unless it is there already.
///
/// A folder made from other bytes, or with another number of parts or seed, is made anew.
/// @throws IoError, InvalidInput as reading, cutting and writing do; the message names the case.
std::filesystem::path prepare_shards(const CaseSource& source, const std::filesystem::path& cache, std::int64_t num_parts, std::int64_t seed);

}  // namespace meshard
