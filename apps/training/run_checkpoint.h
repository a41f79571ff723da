// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/checkpoints/safetensors.h"
#include "models/layers/normalizer.h"

#include <nlohmann/json.hpp>
#include <torch/nn/module.h>
#include <torch/optim/adamw.h>

#include <filesystem>

namespace meshard {

/// A checkpoint is one safetensors file, complete by itself:
///
///     <parameter>                      weights, under the model's own names
///     norm.mean, norm.std              of the targets, per channel
///     optimizer.exp_avg.<parameter>    running means of AdamW, and exp_avg_sq; absent in files that only hold weights
///     metadata `meshard`               a JSON object: model class and arguments, fields, epoch, step, errors
///
/// NAME.json beside NAME.safetensors repeats the metadata for people and scripts; meshard reads the safetensors file only.
/// Both are written atomically, by one rank.
void save_checkpoint(const std::filesystem::path& path, const torch::nn::Module& model, const Normalizer& normalizer, const torch::optim::AdamW& optimizer,
                     const nlohmann::json& description);

/// A checkpoint that was read; the arrays are views into the file.
class Checkpoint {
public:
    /// @throws IoError if the file is missing, damaged or no checkpoint of meshard.
    explicit Checkpoint(const std::filesystem::path& path);

    const nlohmann::json& description() const { return description_; }
    Normalizer normalizer() const;

    /// @throws IoError naming the first parameter that is missing, too many or of another shape.
    void load_weights(torch::nn::Module& model) const;
    void load_optimizer(const torch::nn::Module& model, torch::optim::AdamW& optimizer) const;

private:
    std::filesystem::path path_;
    NamedArrays arrays_;
    nlohmann::json description_;
};

/// Weights from any safetensors file with the model's names; `norm.*` and `optimizer.*` are passed over.
/// @throws IoError as `Checkpoint::load_weights`.
void load_weights(const std::filesystem::path& path, torch::nn::Module& model);

}  // namespace meshard
