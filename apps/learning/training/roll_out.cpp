// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/training/roll_out.h"

#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/record_function.h>
#include <torch/types.h>

#include <algorithm>
#include <deque>
#include <span>
#include <utility>

namespace meshard {
namespace {

/// Lays the tensors of a step as those of an earlier step of its run, of which each rank has the same rows.
CaseTensors laid_as(CaseTensors example, const SpecPtr& spec)
{
    const auto& map = spec_of(example.target)->index_map;  // none where rows are those of a grid
    if (map && map->global_ids != spec->index_map->global_ids)
        throw Error("case {}: its shards have other rows than those of the step before. Remove them from "
                    "data.shards: they are made again.",
                    example.id);
    for (auto* tensor : {&example.inputs.embedding, &example.inputs.positions, &example.target, &example.measures}) {
        if (tensor->defined()) *tensor = from_local(to_local(*tensor), spec);
    }
    return example;
}

/// The first case and the number of cases of each run of a set.
std::vector<std::pair<std::int64_t, std::int64_t>> runs_of(const CaseSet& cases)
{
    std::vector<std::pair<std::int64_t, std::int64_t>> runs;
    const auto& sources = cases.sources();
    for (std::int64_t i = 0; i < cases.size(); ++i) {
        const bool goes_on = i > 0 && sources[i].step->run == sources[i - 1].step->run;
        if (goes_on)
            ++runs.back().second;
        else
            runs.emplace_back(i, 1);
    }
    return runs;
}

/// Rolls out one run, whose steps `examples` gives. Collective over the domain.
void roll_out_run(Run& run, ExampleSequence& examples, const std::vector<CaseSource>& steps, RolledOutRun& rolled_out)
{
    const auto& states = *run.data.states();
    const auto frame = run.data.frame_of(steps.front());
    const auto& of_inputs = *run.data.stored().of_inputs;
    SpecPtr spec;
    PointInputs before;
    at::Tensor predicted, first;
    for (std::size_t i = 0; i < steps.size(); ++i) {
        auto example = examples.next();
        auto& one = example.front();
        if (i == 0)
            spec = spec_of(one.target);
        else
            one = laid_as(one, spec);
        const auto truth = states.next(one.inputs, one.target);
        if (i == 0)
            first = states.state(one.inputs);
        else
            one.inputs = states.after(one.inputs, before, predicted, frame);
        run.model.seed_sample(seed_of_state(0, steps[i].step->index + 1));
        predicted = run.model.next_state(one.inputs, run.model.predict(example));
        const auto mean = of_inputs.mean.narrow(0, states.first(), states.num_fields());
        rolled_out.errors.push_back(field_errors(predicted, truth, one.channels));
        rolled_out.of_persistence.push_back(field_errors(first, truth, one.channels));
        rolled_out.of_mean.push_back(field_errors(torch::zeros_like(truth) + mean, truth, one.channels));
        before = one.inputs;
    }
}

}  // namespace

std::function<std::optional<CaseTurn>()> unrolled_turns(std::function<std::optional<CaseTurn>()> turns,
                                                        const TrainingData& data)
{
    return [turns = std::move(turns), &data, later = std::deque<CaseTurn>()]() mutable -> std::optional<CaseTurn> {
        if (later.empty()) {
            const auto turn = turns();
            if (!turn) return {};
            const auto count = data.num_unrolled(turn->index, turn->epoch);
            for (std::int64_t i = 0; i < count; ++i) {
                later.push_back(*turn);
                later.back().index += i;
            }
        }
        const auto next = later.front();
        later.pop_front();
        return next;
    };
}

std::vector<Example> next_steps(ExampleSequence& examples, std::int64_t count)
{
    std::vector<Example> steps;
    for (std::int64_t i = 0; i < count; ++i) {
        auto example = examples.next();
        if (i > 0) example.front() = laid_as(example.front(), spec_of(steps.front().front().target));
        steps.push_back(std::move(example));
    }
    return steps;
}

std::vector<RolledOutRun> roll_out(Run& run, CaseSet RunCases::* split)
{
    RECORD_USER_SCOPE("roll-out");
    const auto& cases = run.data.stored().*split;
    const auto runs = runs_of(cases);
    const auto& sources = cases.sources();
    // Where parameters are cut among all ranks, all groups take part in each run.
    const auto is_own = [&](std::size_t r) {
        return static_cast<std::int64_t>(r) % run.ranks.num_groups == run.ranks.group;
    };
    std::vector<CaseTurn> turns;
    for (std::size_t r = 0; r < runs.size(); ++r) {
        if (!is_own(r) && !run.model.is_sharded()) continue;
        for (std::int64_t i = 0; i < runs[r].second; ++i) turns.push_back({.index = runs[r].first + i});
    }
    ExampleSequence examples(run.data, split, [turns, next = std::size_t{0}]() mutable {
        return next < turns.size() ? std::optional(turns[next++]) : std::nullopt;
    });
    const auto fields = run.data.fields();
    const auto num_fields = std::ssize(fields);
    auto numbers =
        torch::zeros({cases.size(), static_cast<std::int64_t>(kNumTrainingKinds), num_fields}, torch::kDouble);
    std::vector<RolledOutRun> all;
    for (std::size_t r = 0; r < runs.size(); ++r) {
        const auto [first, count] = runs[r];
        const auto begin = sources.begin() + first;
        auto& one = all.emplace_back();
        one.run = begin->split_id();
        for (const auto& field : fields) one.fields.push_back(field.name);
        for (auto step = begin; step != begin + count; ++step) one.times.push_back(step->step->next().time);
        if (!is_own(r) && !run.model.is_sharded()) continue;
        RolledOutRun found;
        roll_out_run(run, examples, {begin, begin + count}, found);
        if (!is_own(r)) continue;
        for (std::size_t kind = 0; kind < kNumTrainingKinds; ++kind) {
            for (std::int64_t i = 0; i < count; ++i)
                numbers[first + i][static_cast<std::int64_t>(kind)] =
                    torch::tensor((found.*kErrorKinds[kind].of)[i], torch::kDouble);
        }
    }
    run.ranks.across_groups().all_reduce(numbers);
    const auto* value = numbers.const_data_ptr<double>();
    for (auto& one : all) {
        for (std::size_t i = 0; i < one.times.size(); ++i) {
            for (const auto& [name, kind] : std::span(kErrorKinds).first<kNumTrainingKinds>()) {
                (one.*kind).emplace_back(value, value + num_fields);
                value += num_fields;
            }
        }
    }
    return all;
}

}  // namespace meshard
