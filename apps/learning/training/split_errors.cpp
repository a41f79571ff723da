// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/training/split_errors.h"

#include "apps/learning/cases/state_channels.h"
#include "io/bytes/atomic_file.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/record_function.h>
#include <fmt/core.h>
#include <torch/types.h>

#include <numeric>

namespace meshard {
namespace {

using Json = nlohmann::ordered_json;

/// Adds the errors of one case to `sums`, a number for each field, and lets each part's validation judge it.
/// @param index   of the case in its split
void add_case(Run& run, CaseSet RunCases::* split, std::int64_t index, const Example& example,
              const CasePrediction& prediction, at::Tensor& sums)
{
    std::int64_t field = 0;
    for (std::size_t p = 0; p < example.size(); ++p) {
        auto& part = run.data.parts()[p];
        auto points = example[p];
        const auto& scaling = part.scalings.at(points.id);
        auto physical = scaling.physical(part.normalizer.denormalize(prediction.fields[p])),
             guess = scaling.physical(part.training_mean);
        if (const auto& states = run.data.states()) {  // not what is learnt of it is judged, but the next state
            physical = states->next(points.inputs, physical);
            points.target = states->next(points.inputs, points.target);
            guess = part.stored->of_inputs->mean.narrow(0, states->first(), states->num_fields());
        }
        const auto volumes =
            part.data.is_grid ? at::Tensor()
                              : ((*part.stored).*split).volumes(index, spec_of(points.target)->index_map->global_ids);
        part.validation->add(static_cast<std::size_t>(index), points, part.stored->shards.at(points.id), volumes,
                             physical, guess, *run.ranks.domain);
        if (const auto& targets = run.data.coefficient_targets(); p == 0 && targets) {
            part.validation->add_of_head(
                static_cast<std::size_t>(index),
                physical_coefficients(prediction.coefficients, targets->means(), targets->deviations()));
        }
        for (const auto error : field_errors(physical, points.target, points.channels)) sums[field++] += error;
    }
}

}  // namespace

double SplitErrors::mean() const
{
    if (!rolled_out.empty()) return mean_error(rolled_out, &RolledOutRun::errors);
    return std::accumulate(relative_l2.begin(), relative_l2.end(), 0.0) / static_cast<double>(relative_l2.size());
}

SplitErrors split_errors(Run& run, CaseSet RunCases::* split, const std::string& name)
{
    RECORD_USER_SCOPE("validation");
    const torch::NoGradGuard no_grad;
    const AveragedWeights averaged(run.model.update());
    auto& model = run.model;
    model.module().eval();
    const auto& cases = run.data.stored().*split;
    const auto num_fields = std::ssize(run.data.fields());
    auto sums = torch::zeros({num_fields + 1}, torch::kDouble);
    ExampleSequence examples(run.data, split, run.data.order().turns_of_split(cases.size(), model.is_sharded()));
    for (std::int64_t first = 0; first < cases.size(); first += run.ranks.num_groups) {
        const auto i = first + run.ranks.group;
        if (i >= cases.size()) {
            if (model.is_sharded()) model.predict(examples.next());  // whose parameters all groups gather
            continue;
        }
        const auto example = examples.next();
        if (const auto& step = cases.sources()[i].step) model.seed_sample(seed_of_state(0, step->index + 1));
        const auto prediction = within_memory([&] { return model.load_of("validation", cases, i, false); },
                                              [&] { return model.predict(example); });
        sums[num_fields] += model.loss(prediction, example).item<double>();
        add_case(run, split, i, example, prediction, sums);
    }
    SplitErrors errors;
    if (run.data.states()) errors.rolled_out = roll_out(run, split);
    model.module().train();
    run.ranks.across_groups().all_reduce(sums);
    sums /= static_cast<double>(cases.size());

    errors.relative_l2.assign(sums.const_data_ptr<double>(), sums.const_data_ptr<double>() + num_fields);
    errors.loss = sums[num_fields].item<double>();
    for (auto& part : run.data.parts())
        errors.judged.push_back(
            part.validation->finish(((*part.stored).*split).sources(), name, run.ranks.across_groups()));
    return errors;
}

Json error_json(const Run& run, const SplitErrors& errors)
{
    Json values;
    const auto fields = run.data.fields();
    for (std::size_t f = 0; f < fields.size(); ++f) values[fields[f].name]["rel_l2"] = errors.relative_l2[f];
    return values;
}

void record_errors(Run& run, const SplitErrors& errors, const std::string& name, std::int64_t epoch)
{
    if (!run.ranks.is_first()) return;
    Json line{{"phase", name}, {"epoch", epoch}, {"loss", errors.loss}, {"metrics", error_json(run, errors)}};
    line.update(validation_json(errors.judged.front()));
    if (errors.judged.size() > 1) line["errors"].update(validation_json(errors.judged.back())["errors"]);
    if (!errors.rolled_out.empty()) {
        line["rollout"] = roll_out_json(errors.rolled_out);
        write_file_atomically(run.config.run_dir() / (name + "_rollout.csv"), roll_out_csv(errors.rolled_out));
    }
    run.log.record(line);
    write_file_atomically(run.config.run_dir() / (name + "_cases.csv"), to_csv(errors.judged.front()));
    if (errors.judged.size() > 1)
        write_file_atomically(run.config.run_dir() / (name + "_volume_cases.csv"), to_csv(errors.judged.back()));
}

std::string roll_out_text(const SplitErrors& errors)
{
    if (errors.rolled_out.empty()) return "";
    return fmt::format(", rolled out {:.4f} (persistence {:.4f})", errors.mean(),
                       mean_error(errors.rolled_out, &RolledOutRun::of_persistence));
}

void judge_test_cases(Run& run, const std::string& checkpoint, std::int64_t epoch)
{
    if (run.data.stored().test.size() == 0) return;
    const auto errors = split_errors(run, &RunCases::test, "test");
    record_errors(run, errors, "test", epoch);
    std::string text;
    const auto fields = run.data.fields();
    for (std::size_t f = 0; f < fields.size(); ++f)
        text += fmt::format("{} {} {:.4f}", f == 0 ? "" : ",", fields[f].name, errors.relative_l2[f]);
    run.log.say("test, by checkpoint {} of epoch {}:{} (relative L2 error){}{}", checkpoint, epoch, text,
                roll_out_text(errors), drag_text(errors.judged.front()));
    if (const auto worst = worst_text(errors.judged.front()); !worst.empty()) run.log.say(worst);
}

}  // namespace meshard
