// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/checkpoints/run_description.h"
#include "apps/learning/settings/training_config.h"
#include "sharding/parameters/fully_shard.h"
#include "sharding/parameters/optimizers.h"
#include "sharding/parameters/weight_average.h"
#include "sharding/ranks/rank_group.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace meshard {

/// Dynamic scaling of a loss for models in float16, whose gradients would vanish below 6e-8 (Micikevicius et al.,
/// "Mixed Precision Training", 2018): the loss times a scale is differentiated, the gradients are divided by it. A step
/// whose gradients are not finite on any rank is left out on all, and halves the scale; after `growth_interval` steps
/// without one it doubles. The numbers are those of torch.amp.GradScaler.
class LossScaling {
public:
    double scale = 65536;
    std::int64_t num_good_steps = 0;  ///< since the scale has changed
    std::int64_t growth_interval = 2000;
    at::Tensor on_device = {};  ///< the scale (), float, from which recorded steps take it; undefined without a device

    /// A loss whose gradients are those of the given one, times the scale.
    at::Tensor scaled(const at::Tensor& loss) const;

    /// Keeps the scale in memory of a device, too.
    void put_on(const at::Device& device);

    /// Sets the scale, also on the device.
    void set_scale(double value);

    /// Divides gradients by the scale, in place; says whether those of all ranks are finite, and sets the scale for the
    /// next step. Collective.
    /// @param gradients   complete ones in float or wider; undefined ones are passed over
    /// @throws Error on every rank if gradients are not finite however small the scale is
    bool unscale(const std::vector<at::Tensor>& gradients, const RankGroup& ranks);
};

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
