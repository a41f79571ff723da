// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace meshard {

/// With d the error of a channel and t its truth, both in normalised units unless said, sums over all points:
enum class LossKind : std::uint8_t {
    MeanSquare,          ///< `mse`: d^2
    Absolute,            ///< `l1`: |d|
    Huber,               ///< `huber`: d^2 / 2 up to delta, delta (|d| - delta / 2) beyond (Huber 1964)
    RelativeMeanSquare,  ///< `relative_mse`: a channel's sum of d^2 over its sum of t^2 (1e-8 is added to the mean of t^2)
    RelativeL2           ///< `relative_l2`: a field's sqrt(sum of d^2 / sum of t^2) in physical units, all its channels together; the metric
};

/// @throws InvalidInput for a name that is none of those in the comments above.
LossKind loss_kind(std::string_view name);

struct LossTerm {
    LossKind kind = LossKind::MeanSquare;
    double weight = 1;
};

struct FieldLossOptions {
    std::vector<LossTerm> terms{{}};
    double huber_delta = 1;
    std::vector<std::vector<double>> field_weights;  ///< of each field one number, or one for each of its channels; empty: all 1
};

}  // namespace meshard
