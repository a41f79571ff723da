// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/checkpoints/run_description.h"
#include "apps/learning/settings/training_config.h"
#include "apps/learning/training/loss_scaling.h"
#include "sharding/parameters/fully_shard.h"
#include "sharding/parameters/optimizers.h"
#include "sharding/parameters/weight_average.h"
#include "sharding/ranks/rank_group.h"

#include <torch/nn/module.h>

#include <optional>
#include <vector>

namespace meshard {

/// What a step has done to the weights.
struct UpdateOutcome {
    bool is_taken = true;      ///< false: left out on all ranks, and nothing has changed
    at::Tensor gradient_norm;  ///< (), double, before clipping, where gradients lie; undefined where nobody asks for it
};

/// Does what follows backward: unscales gradients, leaves steps out that are not finite, clips gradients, changes
/// weights and averages them.
class WeightUpdate {
public:
    /// @param sharded   null where every rank has whole parameters
    /// @param ranks     all that train
    /// @throws InvalidInput for a group of parameters that matches none.
    WeightUpdate(const TrainingConfig& config, const torch::nn::Module& model, const FullyShardedModule* sharded,
                 const RankGroup& ranks);

    /// Returns the loss as it is to be differentiated.
    at::Tensor scaled(const at::Tensor& loss) const { return loss_scaling_ ? loss_scaling_->scaled(loss) : loss; }

    bool may_leave_out() const { return may_skip_ || loss_scaling_; }

    void zero_grad() { optimizers_.zero_grad(); }

    /// Takes a step. Collective over all ranks where gradients are cut, in float16, and where steps may be left out;
    /// only then does the host wait for a device.
    /// @param losses   of this rank, detached; a step may be left out where one of them is not finite
    UpdateOutcome apply(double rate, const std::vector<at::Tensor>& losses);

    Optimizers& optimizers() { return optimizers_; }
    const Optimizers& optimizers() const { return optimizers_; }
    std::optional<double> loss_scale() const
    {
        return loss_scaling_ ? std::optional(loss_scaling_->scale) : std::nullopt;
    }

    /// Null where weights are not averaged.
    WeightAverage* average() { return average_ ? &*average_ : nullptr; }
    const WeightAverage* average() const { return average_ ? &*average_ : nullptr; }

    /// Adds to a description what a run goes on from besides tensors, or takes it from there.
    void describe(RunDescription& description) const;
    void resume(const RunDescription& description);

private:
    const std::vector<at::Tensor>& parameters() const { return optimizers_.parameters(); }
    std::vector<at::Tensor> gradients() const;

    double max_norm_ = 0;  // 0: gradients are not clipped
    bool may_skip_ = false;
    const RankGroup& ranks_;
    const RankGroup* parts_of_ = nullptr;  // ranks that parameters are cut among
    Optimizers optimizers_;
    std::optional<WeightAverage> average_;
    std::optional<LossScaling> loss_scaling_;  // in float16
};

/// Gives the model its averaged weights, if there are some, as long as this lives.
class AveragedWeights {
public:
    explicit AveragedWeights(WeightUpdate& update) : average_(update.average())
    {
        if (average_) average_->swap();
    }
    ~AveragedWeights()
    {
        if (average_) average_->swap();
    }
    AveragedWeights(const AveragedWeights&) = delete;
    AveragedWeights& operator=(const AveragedWeights&) = delete;

private:
    WeightAverage* average_;
};

}  // namespace meshard
