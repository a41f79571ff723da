// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/layers/field_loss_options.h"
#include "models/layers/normalizer.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace meshard {

/// The loss of a case: a weighted sum of terms. A term is a mean over points and channels, weighted by the channels'
/// weights; the term `relative_l2` treats the channels of a field together and is a mean over fields, weighted by the
/// mean of their channels' weights.
class FieldLoss {
public:
    /// Mean squared error.
    FieldLoss() = default;

    /// @param channels     number of channels of each field
    /// @param normalizer   normaliser of all channels, concatenated; losses are computed on its device
    /// @throws InvalidInput if the numbers of weights do not fit fields or channels, or all weights are zero.
    FieldLoss(const FieldLossOptions& options, const std::vector<std::int64_t>& channels, const Normalizer& normalizer);

    /// @param prediction, target   (1, N, C) in normalised units, plain or cut by rows
    /// @param point_weights        (1, N, 1): weight of each point, with a mean of 1 over all points; undefined: 1
    /// @return (), plain or a pending sum. Relative terms are collective over the ranks over which rows are cut.
    at::Tensor operator()(const at::Tensor& prediction, const at::Tensor& target,
                          const at::Tensor& point_weights = {}) const;

private:
    at::Tensor term(LossKind kind, const at::Tensor& prediction, const at::Tensor& target,
                    const at::Tensor& point_weights) const;

    std::vector<LossTerm> terms_{{}};
    double huber_delta_ = 1;
    Normalizer normalizer_;
    bool has_weights_ = false;
    at::Tensor channel_weights_;   // (C), with sum 1
    at::Tensor field_weights_;     // (F), with sum 1
    at::Tensor field_of_channel_;  // (C, F), 1 if a channel belongs to a field, else 0
};

}  // namespace meshard
