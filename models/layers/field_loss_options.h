// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace meshard {

/// Terms with the error d of a channel and its truth t, both in normalised units unless stated otherwise; sums are over
/// all points.
enum class LossKind : std::uint8_t {
    MeanSquare,  ///< `mse`: d^2
    Absolute,    ///< `l1`: |d|
    Huber,       ///< `huber`: d^2 / 2 up to delta, delta (|d| - delta / 2) beyond (Huber 1964)
    /// `relative_mse`: a channel's sum of d^2 divided by its sum of t^2 (1e-8 is added to the mean of t^2).
    RelativeMeanSquare,
    /// `relative_l2`: a field's sqrt(sum of d^2 / sum of t^2) in physical units, over all its channels; the metric.
    RelativeL2
};

/// @throws InvalidInput for any name but those above.
LossKind loss_kind(std::string_view name);

struct LossTerm {
    LossKind kind = LossKind::MeanSquare;
    double weight = 1;
};

struct FieldLossOptions {
    std::vector<LossTerm> terms{{}};
    double huber_delta = 1;
    /// For each field one number, or one for each of its channels; empty: all 1.
    std::vector<std::vector<double>> field_weights{};
};

}  // namespace meshard
