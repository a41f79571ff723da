// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/cases/state_channels.h"

#include "partition/error.h"
#include "partition/random_numbers.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <cmath>
#include <numeric>

namespace meshard {
namespace {

/// Makes a tensor of three numbers on the device of another.
at::Tensor numbers_on(const std::array<double, 3>& numbers, const at::Tensor& like)
{
    std::vector<float> values(numbers.begin(), numbers.end());
    return at::tensor(values).to(like.device());
}

/// Gives rows the ids of the inputs' rows, by which neighbours are ordered and noise is drawn: results of operators
/// have none.
at::Tensor with_ids(const at::Tensor& rows, const PointInputs& inputs)
{
    return inputs.positions.defined() ? from_local(to_local(rows), spec_of(inputs.positions)) : rows;
}

}  // namespace

StateChannels::StateChannels(const DataConfig& data, const std::vector<std::int64_t>& channels)
    : first_(first_channel(data, {})), num_state_(std::accumulate(channels.begin(), channels.end(), std::int64_t{0})),
      history_(data.series.history), learnt_(data.series.learnt), has_mask_(!data.mask.empty()),
      moves_as_given_(data.series.moves_as_given())
{
    std::int64_t channel = 0;
    for (std::size_t f = 0; f < data.fields.size(); ++f) {
        if (data.fields[f].state == kCoordinates) place_ = channel;
        channel += channels[f];
    }
}

at::Tensor StateChannels::state(const PointInputs& inputs) const
{
    return inputs.embedding.narrow(-1, first_, num_state_);
}

at::Tensor StateChannels::left_out(const PointInputs& inputs) const
{
    return has_mask_ ? inputs.embedding.narrow(-1, first_, 1).isnan() : at::Tensor();
}

/// Returns the time to the next state, which is told last; 1 where points do not count, so that no gradient is NaN.
at::Tensor StateChannels::step(const PointInputs& inputs) const
{
    const auto step = inputs.embedding.narrow(-1, inputs.embedding.size(-1) - 1, 1);
    return has_mask_ ? step.masked_fill(step.isnan(), 1) : step;
}

at::Tensor StateChannels::next(const PointInputs& inputs, const at::Tensor& learnt) const
{
    auto next = learnt_ == LearntState::Rate ? learnt * step(inputs) : learnt;
    if (learnt_ != LearntState::Next) next = state(inputs) + next;
    return has_mask_ ? next.masked_fill(left_out(inputs), NAN) : next;
}

at::Tensor StateChannels::learnt(const PointInputs& inputs, const at::Tensor& next) const
{
    if (learnt_ == LearntState::Next) return next;
    const auto difference = next - state(inputs);
    return learnt_ == LearntState::Rate ? difference / step(inputs) : difference;
}

PointInputs StateChannels::with_state(const PointInputs& inputs, const at::Tensor& state, const CaseFrame& frame) const
{
    const auto places_of_state = place_ ? places(state) : at::Tensor();
    if (history_ == 1) return with_states(inputs, state, places_of_state, frame);
    const auto older = inputs.embedding.narrow(-1, first_ + num_state_, (history_ - 1) * num_state_);
    return with_states(inputs, at::cat({state, older}, -1), places_of_state, frame);
}

PointInputs StateChannels::after(const PointInputs& of_step, const PointInputs& before, const at::Tensor& next,
                                 const CaseFrame& frame) const
{
    at::Tensor places_then;
    if (place_)
        places_then = places(next);
    else if (moves_as_given_)  // the last arrays before the step
        places_then = before.embedding.narrow(-1, before.embedding.size(-1) - 4, 3);
    if (history_ == 1) return with_states(of_step, next, places_then, frame);
    const auto older = before.embedding.narrow(-1, first_, (history_ - 1) * num_state_);
    return with_states(of_step, at::cat({next, older}, -1), places_then, frame);
}

/// @param places   of the points; undefined: as the inputs have them
PointInputs StateChannels::with_states(const PointInputs& inputs, const at::Tensor& states, const at::Tensor& places,
                                       const CaseFrame& frame) const
{
    auto changed = inputs;
    auto of_shape = inputs.embedding.narrow(-1, 0, first_);
    if (places.defined()) {
        of_shape =  // the only input where points move
            (places - numbers_on(frame.center, inputs.embedding)) / numbers_on(frame.lengths, inputs.embedding);
        changed.positions = with_ids(of_shape, inputs);
    }
    auto others = arrays(inputs);
    // Arrays may have numbers where states have none: the model is told the same of them in each step.
    if (has_mask_) others = others.masked_fill(states.narrow(-1, 0, 1).isnan(), NAN);
    changed.embedding = with_ids(at::cat({of_shape, states, others}, -1), inputs);
    return changed;
}

PointInputs StateChannels::with_arrays(const PointInputs& inputs, const at::Tensor& arrays) const
{
    auto changed = inputs;
    changed.embedding = with_ids(at::cat({inputs.embedding.narrow(-1, 0, end_of_states()), arrays}, -1), inputs);
    return changed;
}

at::Tensor StateChannels::arrays(const PointInputs& inputs) const
{
    return inputs.embedding.narrow(-1, end_of_states(), inputs.embedding.size(-1) - end_of_states());
}

void require_told(std::int64_t found, const DataConfig& data, const std::string& where)
{
    if (found == std::ssize(data.series.told)) return;
    throw InvalidInput("{}: a point is told {} numbers, and the model was trained with {}: {}. An array has "
                       "other components than in training.",
                       where, found, data.series.told.size(), fmt::join(data.series.told, ", "));
}

std::uint64_t seed_of_state(std::uint64_t member, std::int64_t state)
{
    return RandomNumbers(RandomNumbers(member).next() + static_cast<std::uint64_t>(state)).next();
}

std::vector<std::string> told_names(const DataConfig& data, const std::vector<std::int64_t>& channels,
                                    std::int64_t count)
{
    std::vector<std::string> names;
    for (std::int64_t back = 0; back < data.series.history; ++back) {
        for (std::size_t f = 0; f < data.fields.size(); ++f) {
            for (std::int64_t c = 0; c < channels[f]; ++c) {
                auto name = data.fields[f].name;
                if (channels[f] == 3)
                    name += std::string(".") + "xyz"[c];
                else if (channels[f] > 1)
                    name += fmt::format(".{}", c);
                names.push_back(back == 0 ? name : fmt::format("{} {} before", name, back));
            }
        }
    }
    // The arrays name their numbers only if each has one.
    auto arrays = data.told_arrays();
    arrays.insert(arrays.end(), data.series.given.begin(), data.series.given.end());
    const auto num_of_arrays = count - 1 - std::ssize(names);
    for (std::int64_t i = 0; i < num_of_arrays; ++i)
        names.push_back(std::ssize(arrays) == num_of_arrays ? arrays[i]
                                                            : fmt::format("number {} of data.arrays", i + 1));
    names.emplace_back("step");
    return names;
}

}  // namespace meshard
