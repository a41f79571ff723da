// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/devices/device_load.h"
#include "apps/learning/checkpoints/run_checkpoint.h"
#include "apps/learning/training/step_graphs.h"
#include "apps/learning/training/training_data.h"
#include "apps/learning/training/weight_update.h"
#include "models/registry/coefficient_head.h"
#include "models/registry/registry.h"
#include "sharding/parameters/fully_shard.h"
#include "sharding/parameters/replicate.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace meshard {

struct CasePrediction {
    std::vector<at::Tensor> fields;  // of each part, float32
    at::Tensor coefficients;         // of the head, (1, coefficients); undefined where the model has none
};

/// The model of a run on its ranks, with its loss and the update of its weights.
class TrainedModel {
public:
    /// Makes the model, or for a run without a checkpoint loads the weights that `training.init` names. Models of grids
    /// try the grids of all cases. Collective. @throws InvalidInput for a model that does not fit the data
    TrainedModel(const TrainingRunConfig& config, TrainingData& data, const RunRanks& ranks, TrainingLog& log);

    Model& model() { return model_; }
    const Model& model() const { return model_; }
    torch::nn::Module& module() { return *model_.module; }
    WeightUpdate& update() { return *update_; }
    const WeightUpdate& update() const { return *update_; }
    bool is_sharded() const { return sharded_.has_value(); }
    std::int64_t num_parameters() const;  ///< of the whole model

    /// Predicts a case in the run's precision. Collective.
    CasePrediction predict(const Example& example);
    /// Sets from which noise a denoiser draws the next predictions.
    void seed_sample(std::uint64_t seed);
    /// Returns the next state, in its own units, that a prediction means for a step of a run.
    at::Tensor next_state(const PointInputs& inputs, const CasePrediction& prediction) const;
    /// Returns the loss of a prediction; in training with the term of the head's coefficients.
    at::Tensor loss(const CasePrediction& prediction, const Example& example) const;
    /// Computes the loss of an example, detached, and adds its gradients times `weight`. Where steps are recorded, it
    /// runs a recorded one. Collective.
    at::Tensor loss_with_gradients(const Example& example, double weight, TrainingLog& log);
    /// The same for steps of a run that follow each other, each from the state that the one before it predicted, and
    /// with noise on the first: the mean of their losses. A denoiser's is that of one level of noise. Collective.
    /// @param frame   of the run (`TrainingData::frame_of`)
    /// @param seed   of the noise, which also depends on a point's id, so that it is the same on any ranks
    at::Tensor loss_with_gradients(const std::vector<Example>& steps, const CaseFrame& frame, double weight,
                                   std::uint64_t seed, TrainingLog& log);
    /// Forgets the gradients of the step before, and keeps the running statistics if the step may be left out.
    void begin_step();
    /// Ends a step for the running statistics of normalizations. One that was left out leaves no trace in them.
    /// Otherwise takes their mean, since each group of ranks has those of its own cases, over the groups that had a
    /// case: all validate as the checkpoint does. A case of weight 0, which fills up a step, leaves no trace either.
    /// Collective.
    void settle_statistics(bool is_taken);
    /// Whether gradients are exchanged at the end of the next backward pass.
    void set_sync(bool is_last_case);

    /// Records steps from now on where `training.graph_capture` asks for it and they can be recorded.
    void start_graphs();
    const std::optional<StepGraphs>& graphs() const { return graphs_; }
    /// Says why no step of this run can be recorded, as the end of a sentence; empty if one may be.
    std::string why_no_graphs() const;

    /// Collects what a checkpoint keeps. Collective where parameters are cut among the ranks.
    TrainedValues values() const;
    /// Takes weights, optimiser state and averages from a checkpoint. @param to_train   otherwise the weights are those
    /// that predict, also where the run has no mean of them any more
    void load(const Checkpoint& checkpoint, bool to_train = true);
    /// Returns the bytes of parameters, gradients and optimiser state on the rank that holds most of each. Collective.
    std::array<std::int64_t, 3> bytes_held() const;

    /// Describes the work on a case to `within_memory`. @param trains   whether a step takes its points, or all of them
    DeviceLoad load_of(const std::string& what, const CaseSet& cases, std::int64_t index, bool trains) const;

private:
    void make();
    void check_grids();
    at::Tensor denoising_loss(const CaseTensors& example, std::uint64_t seed) const;
    at::Tensor normalized_target(std::size_t index, const CaseTensors& example) const;
    at::Tensor loss_of_part(std::size_t index, const at::Tensor& prediction, const CaseTensors& example) const;
    PointInputs inputs_of_model(const PointInputs& inputs) const;
    PointInputs with_noise(const PointInputs& inputs, const CaseFrame& frame, std::uint64_t seed) const;
    at::Tensor differentiated(const Example& example, double weight);
    at::Tensor differentiated(const std::vector<Example>& steps, const CaseFrame& frame, double weight,
                              std::uint64_t seed, TrainingLog& log);
    StepInputs inputs_of_step(const Example& example, double weight) const;

    const TrainingRunConfig& config_;
    TrainingData& data_;
    const RunRanks& ranks_;
    Model model_;
    std::optional<ReplicatedModule> replicated_;
    std::optional<FullyShardedModule> sharded_;                                   // in its place
    std::function<FieldsAndCoefficients(const PointInputs&)> forward_with_head_;  // where coefficients are learnt
    std::optional<WeightUpdate> update_;
    bool has_counted_ = false;  // there was a case of another weight than 0 in this step
    // Running means and variances, where there are several groups or a step may be left out; and before the step.
    std::vector<at::Tensor> statistics_, statistics_before_;
    std::optional<StepGraphs> graphs_;
};

}  // namespace meshard
