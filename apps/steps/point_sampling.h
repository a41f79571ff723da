// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/cases/case_tensors.h"
#include "apps/settings/training_config.h"
#include "apps/store/point_draws.h"

#include <cstdint>
#include <string>
#include <vector>

namespace meshard {

/// Which of a case's points take part in a training step.
struct PointSampling {
    std::int64_t num_points = 0;  ///< of each case; 0, or more than a case has: all
    SamplingKind kind = SamplingKind::Uniform;
    bool knows_all = false;  ///< the model is told of all points as well (`PointInputs::drawn_from`)
};

/// Whether all points of a case with so many take part.
bool draws_all(const PointSampling& sampling, std::int64_t num_points);

/// Ids of the points that are drawn in an epoch (from 1), ascending, where that takes nothing but the case's id and number of points: not by area.
std::vector<std::int64_t> drawn_ids(const PointSampling& sampling, std::int64_t num_points, std::int64_t seed, const std::string& case_id, std::int64_t epoch);

/// The case with the points that are drawn in an epoch (from 1), in the order of their ids: the same on any number of ranks. The rows' ids are their places
/// among the points drawn. Unchanged where all take part. By area: `count` draws without replacement, each in proportion to the areas left (Efraimidis and
/// Spirakis, Weighted random sampling with a reservoir, 2006). Collective over the case's domain.
/// @param area_channel  of the embedding, where `sampling.kind` is Areas
/// @throws InvalidInput naming the case for an area that is negative, and where fewer than `count` points have an area.
CaseTensors sampled_case(const CaseTensors& example, const PointSampling& sampling, std::int64_t area_channel, std::int64_t seed, std::int64_t epoch);

}  // namespace meshard
