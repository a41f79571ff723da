// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_tensors.h"
#include "apps/learning/settings/training_config.h"
#include "models/registry/registry.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace meshard {

/// Finds the states of a simulation among what a point is told (`PointInputs::embedding`), and makes of a predicted
/// state what the model is told in the next step. The channels are those of `data.inputs`, then those of `kTold`: the
/// fields of the last state, of the one before it, ..., categories and other arrays, the given arrays, and the time to
/// the next state, all in their own units. Tensors are (1, N, C), sharded or not; functions are differentiable.
class StateChannels {
public:
    /// @param channels   number of channels of each field
    StateChannels(const DataConfig& data, const std::vector<std::int64_t>& channels);

    std::int64_t first() const { return first_; }           ///< channel of the last state among those of a point
    std::int64_t num_fields() const { return num_state_; }  ///< channels of a state
    /// Whether the points move: their coordinates are a field, or given.
    bool moves_points() const { return place_.has_value() || moves_as_given_; }
    bool moves_as_given() const { return moves_as_given_; }
    /// Returns the coordinates in a state, of which they are a field, (..., 3).
    at::Tensor places(const at::Tensor& state) const { return state.narrow(-1, place_.value(), 3); }

    /// Returns which points do not count (`data.mask`), (1, N, 1): those that are told NaN. Undefined without a mask.
    at::Tensor left_out(const PointInputs& inputs) const;
    /// Returns the last state that is told.
    at::Tensor state(const PointInputs& inputs) const;

    /// Returns the next state from what was learnt of it, and the inverse. Points that do not count stay NaN, and
    /// gradients of what counts do not depend on them.
    at::Tensor next(const PointInputs& inputs, const at::Tensor& learnt) const;
    at::Tensor learnt(const PointInputs& inputs, const at::Tensor& next) const;

    /// Returns the inputs of a step with another state in place of its last one.
    /// @param frame   of the run, by which points that move are made comparable with those of other runs
    PointInputs with_state(const PointInputs& inputs, const at::Tensor& state, const CaseFrame& frame) const;

    /// Returns the inputs of the step after `before`, which predicted `next`.
    /// @param of_step   gives all that is no state; its rows lie as those of `before`
    PointInputs after(const PointInputs& of_step, const PointInputs& before, const at::Tensor& next,
                      const CaseFrame& frame) const;

    /// Returns the inputs with other numbers in place of those that are no state: arrays, given arrays, and the step.
    PointInputs with_arrays(const PointInputs& inputs, const at::Tensor& arrays) const;
    /// Returns these numbers.
    at::Tensor arrays(const PointInputs& inputs) const;

private:
    at::Tensor step(const PointInputs& inputs) const;
    std::int64_t end_of_states() const { return first_ + history_ * num_state_; }
    PointInputs with_states(const PointInputs& inputs, const at::Tensor& states, const at::Tensor& places,
                            const CaseFrame& frame) const;

    std::int64_t first_, num_state_, history_;
    std::optional<std::int64_t> place_;  // first channel of the coordinates in a state
    LearntState learnt_;
    bool has_mask_, moves_as_given_;
};

/// @param found   numbers of a point that were told, those of `kTold`   @param where   begins the message
/// @throws InvalidInput if these are not as many as the model was trained with
void require_told(std::int64_t found, const DataConfig& data, const std::string& where);

/// Seeds what a denoiser draws for a state of a run, the same wherever the state is predicted. @param member   of an
/// ensemble
std::uint64_t seed_of_state(std::uint64_t member, std::int64_t state);

/// Names the `count` numbers of `kTold`: `velocity.x`, `velocity.x before 1`, ..., `step`.
std::vector<std::string> told_names(const DataConfig& data, const std::vector<std::int64_t>& channels,
                                    std::int64_t count);

}  // namespace meshard
