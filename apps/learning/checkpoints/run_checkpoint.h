// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/checkpoints/run_description.h"
#include "io/checkpoints/safetensors.h"
#include "models/layers/normalizer.h"
#include "sharding/parameters/fully_shard.h"
#include "sharding/parameters/optimizers.h"
#include "sharding/parameters/weight_average.h"

#include <torch/nn/module.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// What a checkpoint keeps of a model and its optimiser: whole tensors by name, those of the optimiser as the file
/// calls them.
struct TrainedValues {
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    std::optional<std::int64_t> optimizer_step;  ///< none before the first
};

/// Collects what a checkpoint keeps. The first rank of the group that parameters are cut among receives whole tensors,
/// which are gathered one at a time, and the other ranks nothing. Collective over that group.
/// @param average   null where weights are not averaged
/// @param sharded   null where every rank has whole parameters
TrainedValues trained_values(const torch::nn::Module& model, const Optimizers& optimizers,
                             const WeightAverage* average = nullptr, const FullyShardedModule* sharded = nullptr);

/// A checkpoint is one safetensors file, complete by itself:
///
///     <parameter>                      weights, under the model's own names, or their running mean
///     norm.mean, norm.std              means and deviations of the targets, per channel
///     norm.input_mean, norm.input_std  those of the inputs of a model of grids, per channel
///     optimizer.exp_avg.<parameter>    running means of the optimiser, and exp_avg_sq of AdamW
///     optimizer.weights.<parameter>    weights that training goes on from, if the names above hold means
///     metadata `meshard`               a JSON object: the `RunDescription`
///
/// Other models lack the means of inputs; files that only hold weights lack all of `optimizer`.
///
/// NAME.json beside NAME.safetensors repeats the metadata for people and scripts; meshard reads the safetensors file
/// only. Both are written atomically, by one rank.
void save_checkpoint(const std::filesystem::path& path, const TrainedValues& values, const Normalizer& normalizer,
                     const RunDescription& description, const Normalizer* of_inputs = nullptr);

/// A checkpoint that was read; the arrays are views into the file.
class Checkpoint {
public:
    /// @throws IoError if the file is missing, damaged or no checkpoint of meshard, and as `run_description`
    explicit Checkpoint(const std::filesystem::path& path);

    const RunDescription& description() const { return description_; }
    Normalizer normalizer() const;
    /// Returns the scales of what a model of grids is told. @throws IoError if the file has none
    Normalizer input_normalizer() const;
    /// Returns the mean of the targets over the training cases (channels). It is the normaliser's, unless that leaves
    /// vectors their mean.
    at::Tensor training_mean() const;

    /// The following functions fill the model's parameters, or this rank's parts of them where `sharded` is given.
    /// @throws IoError naming the first parameter that is missing, too many or of another shape.
    void load_weights(torch::nn::Module& model, const FullyShardedModule* sharded = nullptr) const;
    void load_optimizer(const torch::nn::Module& model, Optimizers& optimizers,
                        const FullyShardedModule* sharded = nullptr) const;
    /// Loads the weights that training goes on from, where the file has them besides their mean, which `load_weights`
    /// gives. Other parameters stay as they are.
    void load_raw_weights(const torch::nn::Module& model, const FullyShardedModule* sharded = nullptr) const;

private:
    std::filesystem::path path_;
    NamedArrays arrays_;
    RunDescription description_;
};

/// Loads weights from any file that `read_checkpoint` reads, with the model's names; `norm.*` and `optimizer.*` are
/// passed over.
/// @param class_name   of the model
/// @return what was renamed or left out, a sentence each
/// @throws InvalidInput if the file is of another class; IoError as `read_checkpoint` and `Checkpoint::load_weights`.
std::vector<std::string> load_weights(const std::filesystem::path& path, torch::nn::Module& model,
                                      const std::string& class_name);

/// Loads weights that were read from the file `path`. @throws IoError as `Checkpoint::load_weights`.
void load_weights(const NamedArrays& arrays, const std::filesystem::path& path, torch::nn::Module& model);

}  // namespace meshard
