// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/plan/operation.h"
#include "models/layers/memory_mode.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace meshard {

/// A model whose step is counted.
struct PlannedModel {
    std::string name;                      ///< as in the registry
    nlohmann::json arguments;              ///< of its constructor, all of them
    std::vector<std::int64_t> parameters;  ///< numbers in each, in the model's order

    std::int64_t num_parameters() const;  ///< all numbers together
};

/// Numbers of channels of a model's inputs and results.
struct PlannedWidths {
    std::int64_t inputs = 6, outputs = 4, constants = 0;
};

/// The model with all its arguments. It is made once, to know its parameters.
/// @throws InvalidInput as `find_model` and `complete_arguments`, and for a model or an argument whose work is not counted
PlannedModel planned_model(std::string_view name, const nlohmann::json& arguments, const PlannedWidths& widths);

/// The modes that a model of this kind can train in, the fastest first.
std::vector<MemoryMode> memory_modes(const PlannedModel& model);

/// One rank's part of a step.
struct StepShare {
    double points = 0;  ///< of this rank
    std::int64_t num_ranks = 1;
    double ghosts = 0;  ///< of this rank, for models in which a point depends on its neighbours
    MemoryMode memory = MemoryMode::Stored;
    WorkForm form = WorkForm::Gpu;
    double bytes_per_number = 4;  ///< of what goes from operator to operator
};

/// Messages of one kind that a rank takes part in.
struct StepMessage {
    std::string operation;  ///< as CommCounter names it
    std::string what;
    std::int64_t times = 1;
    std::int64_t bytes = 0;  ///< of one, as CommCounter counts them
};

/// What a rank holds at the fullest moment of a step.
struct StepMemory {
    double parameters = 0;         ///< bytes: weights, gradients, AdamW's two moments, buckets of gradients that are sent
    double inputs_per_point = 0;   ///< the model's inputs and its target
    double kept_per_point = 0;     ///< from forward to backward
    double passing_per_point = 0;  ///< gradients, and results that live for one operator
    double workspace = 0;          ///< of tiles, whatever the number of points

    double bytes_per_point() const { return inputs_per_point + kept_per_point + passing_per_point; }
    double bytes(double points) const { return parameters + workspace + points * bytes_per_point(); }
};

/// A training step of one rank: forward, mean squared error, backward, AdamW, and what `train` tells the other ranks.
struct StepWork {
    std::vector<Operation> operations;
    std::vector<StepMessage> messages;  ///< none on one rank
    StepMemory memory;
    double useful_flop = 0;  ///< products of the model as its authors write it, forward once and backward once: nothing that is computed again
    double small_calls = 0;  ///< of operators on tensors whose size does not depend on the points

    double flop() const;  ///< of all products
    std::int64_t num_messages() const;
    std::int64_t message_bytes() const;
};

StepWork step_work(const PlannedModel& model, const StepShare& share);

/// Whether a point's results depend on its neighbours, so that shards have ghosts.
bool has_ghosts(const PlannedModel& model);

}  // namespace meshard
