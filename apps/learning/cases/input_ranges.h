// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/settings/training_config.h"
#include "models/registry/registry.h"
#include "sharding/ranks/rank_group.h"

#include <nlohmann/json.hpp>

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// Least and largest value of each input over the training cases, with which a prediction's inputs are compared: a
/// model is not reliable beyond them.
class InputRanges {
public:
    /// Widens the ranges to this rank's rows of a case: inputs (1, N, channels), and (1, G) and (1) for the case, where
    /// given.
    void add(const PointInputs& inputs);

    /// Widens the range of sizes to that of a case: the longest edge of its box.
    /// @param bounds   lowest and highest x, y and z
    void add_size(const std::array<double, 6>& bounds);

    /// Joins the ranges of all ranks. Collective.
    void join(const RankGroup& ranks);

    bool is_empty() const { return low_.empty(); }

    /// Writes {low: [...], high: [...], size: [...]}: the points' channels, then the constants, then the time, and the
    /// least and the largest size, where known. `from_json` reads it; null gives empty ranges.
    nlohmann::json to_json() const;
    static InputRanges from_json(const nlohmann::json& json);

    /// Returns a sentence for each input of a case that leaves the ranges by more than 2 % of their width, with the
    /// share of the points that do. All ranks return the same. Collective.
    std::vector<std::string> beyond(const PointInputs& inputs, const DataConfig& data, const RankGroup& ranks) const;

    /// Returns a sentence if a case is kOtherSize times as large as the largest training case, or the smallest is so
    /// many times as large as it: it may be in other units, which a model that is told places over `data.length` does
    /// not see, but its forces have. Empty if not, or if the sizes are not known.
    std::string other_size(const std::array<double, 6>& bounds) const;
    static constexpr double kOtherSize = 3;

    /// Returns a sentence for each input whose range was another one before, but for rounding; none where it is not
    /// known.
    std::vector<std::string> changes_since(const InputRanges& before, const DataConfig& data) const;

    /// Returns the lowest and the highest value of a constant of the training cases, or of their time; none for other
    /// names, and where the model has no ranges.
    std::optional<std::pair<double, double>> of_number(const std::string& name, const DataConfig& data) const;

private:
    std::vector<double> low_, high_;
    std::optional<std::pair<double, double>> size_;
};

}  // namespace meshard
