// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/settings/training_config.h"
#include "models/registry/registry.h"
#include "sharding/ranks/rank_group.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace meshard {

/// Least and largest value of each input over the training cases: what a prediction can be compared with. A model is no guide beyond what it was trained on.
class InputRanges {
public:
    /// Widens the ranges to a case with these inputs, of which this rank has its rows: (1, N, channels), and per case (1, G) and (1), where they are given.
    void add(const PointInputs& inputs);

    /// Joins the ranges of all ranks. Collective.
    void join(const RankGroup& ranks);

    bool is_empty() const { return low_.empty(); }

    /// {low: [...], high: [...]}: of the channels of points, then the constants, then the time. Back: empty where `json` is null.
    nlohmann::json to_json() const;
    static InputRanges from_json(const nlohmann::json& json);

    /// A sentence for each input of a case that leaves the ranges by more than 2 % of their width, with the share of the points that do. The same on every
    /// rank. Collective.
    std::vector<std::string> beyond(const PointInputs& inputs, const DataConfig& data, const RankGroup& ranks) const;

private:
    std::vector<double> low_, high_;
};

}  // namespace meshard
