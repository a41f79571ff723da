// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_tensors.h"

#include <cstdint>
#include <vector>

namespace meshard {

/// Whether all points of a case take part in a step. @param num_sampled   `data.sampling_resolution`, 0: all
inline bool draws_all(std::int64_t num_sampled, std::int64_t num_points)
{
    return num_sampled == 0 || num_sampled >= num_points;
}

/// Returns the case restricted to the points with these ascending ids; the rows' ids become positions among the drawn
/// points. No communication.
/// @param knows_all   keeps all points as well, for models that need them (`PointInputs::drawn_from`)
CaseTensors sampled_case(const CaseTensors& example, const std::vector<std::int64_t>& drawn, bool knows_all = false);

}  // namespace meshard
