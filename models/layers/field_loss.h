// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/layers/field_loss_options.h"
#include "models/layers/normalizer.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace meshard {

/// The loss of a case: a weighted sum of terms. A term is the mean over points and channels, where a channel counts as often as its weight says; of
/// `relative_l2`, whose channels belong together, the mean over fields, a field by the mean of its channels' weights.
class FieldLoss {
public:
    /// Mean squared error.
    FieldLoss() = default;

    /// @param channels     of each field
    /// @param normalizer   of all channels, side by side; where it lies, losses are computed
    /// @throws InvalidInput where weights are not as many as fields or channels, or are all zero.
    FieldLoss(const FieldLossOptions& options, const std::vector<std::int64_t>& channels, const Normalizer& normalizer);

    /// @param prediction, target   (1, N, C) in normalised units, plain or cut by rows
    /// @param point_weights        (1, N, 1) how often each point counts, with a mean of 1 over all points; undefined: once
    /// @return (), plain or a pending sum. Relative terms are collective over the ranks that rows are cut among.
    at::Tensor operator()(const at::Tensor& prediction, const at::Tensor& target, const at::Tensor& point_weights = {}) const;

private:
    at::Tensor term(LossKind kind, const at::Tensor& prediction, const at::Tensor& target, const at::Tensor& point_weights) const;

    std::vector<LossTerm> terms_{{}};
    double huber_delta_ = 1;
    Normalizer normalizer_;
    bool has_weights_ = false;
    at::Tensor channel_weights_;   // (C), with a sum of 1
    at::Tensor field_weights_;     // (F), with a sum of 1
    at::Tensor field_of_channel_;  // (C, F), 1 where a channel belongs to a field, else 0
};

}  // namespace meshard
