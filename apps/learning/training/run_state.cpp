// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/training/run_state.h"

#include "apps/learning/checkpoints/run_checkpoint.h"
#include "sharding/tensor/host_values.h"

#include <ATen/ATen.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace meshard {
namespace {

std::filesystem::path checkpoint_path(const TrainingRunConfig& config, const char* name)
{
    return config.run_dir() / "checkpoints" / (std::string(name) + ".safetensors");
}

/// Says for each channel whose statistics were others before, but for rounding, what they were and are. Statistics are
/// kept in single precision, and their last digits depend on the number of ranks.
void add_changes(std::vector<std::string>& changes, const std::vector<std::string>& names, const Normalizer& before,
                 const Normalizer& now)
{
    constexpr double rounding = 1e-5, of_storage = 1e-6;
    for (std::int64_t c = 0; c < std::min({std::ssize(names), before.mean.size(0), now.mean.size(0)}); ++c) {
        const auto number = [c](const at::Tensor& of_channels) { return of_channels[c].item<double>(); };
        const auto mean = number(before.mean), deviation = number(before.std);
        const auto largest = rounding * deviation + of_storage * std::abs(mean);
        if (std::abs(number(now.mean) - mean) <= largest && std::abs(number(now.std) - deviation) <= largest) continue;
        changes.push_back(fmt::format("{} had mean {:.6g} and deviation {:.6g}, and has {:.6g} and {:.6g} now",
                                      names[c], mean, deviation, number(now.mean), number(now.std)));
    }
}

/// Compares what is learnt and told in the training cases with what it was when the checkpoint's run began.
std::vector<std::string> changes_of_data(const Run& run, const Checkpoint& checkpoint)
{
    std::vector<std::string> names, changes;
    const auto& before = checkpoint.description();
    for (const auto& field : before.fields)
        for (std::int64_t c = 0; c < field.num_channels; ++c)
            names.push_back(field.num_channels == 1 ? field.name : fmt::format("{}[{}]", field.name, c));
    add_changes(changes, names, {checkpoint.training_mean(), checkpoint.normalizer().std},
                {run.data.training_mean().cpu(), run.data.normalizer().std.cpu()});
    std::size_t part = 0;
    for (const auto& one : run.data.parts()) {
        const auto of_inputs = one.ranges.changes_since(before.parts[part++].ranges, one.data);
        changes.insert(changes.end(), of_inputs.begin(), of_inputs.end());
    }
    if (const auto& targets = run.data.coefficient_targets(); targets && before.head)
        add_changes(changes, before.head->names,
                    {at::tensor(before.head->means, at::kDouble), at::tensor(before.head->deviations, at::kDouble)},
                    {at::tensor(targets->means(), at::kDouble), at::tensor(targets->deviations(), at::kDouble)});
    return changes;
}

/// All settings that the mean loss of an epoch depends on, besides its cases.
std::string loss_text(const TrainingRunConfig& config)
{
    const auto& training = config.training;
    auto text = fmt::format("{} {} {} {} {} {} {}", training.losses, training.loss_weights, training.loss.huber_delta,
                            training.field_weights, training.point_weights, training.part_weights,
                            training.coefficient_weights);
    for (std::size_t i = 0; i < config.num_parts(); ++i) {
        const auto part = config.of_part(i).data;
        text += fmt::format(" {} {}", part.num_sampled, static_cast<int>(part.sampling));
    }
    return text;
}

}  // namespace

Run::Run(const TrainingRunConfig& config, const CaseLists& cases, const TrainingStart& start, World& world,
         const volatile std::sig_atomic_t& stop_requested)
    : config(config), ranks(config, world),
      log(start.is_trial() ? std::filesystem::path() : config.run_dir() / "metrics.jsonl", ranks.is_first()),
      data(config, cases, start, ranks, log, stop_requested), model(config, data, ranks, log)
{
    if (!start.is_trial() && config.writes_events) log.write_events(config.run_dir() / "tensorboard");
    data.keep(log);
    model.start_graphs();
    seconds_in_preparation = seconds_since(this->start);
}

RunDescription describe(const Run& run, const nlohmann::json& errors, const HeldOutErrors& held_out)
{
    const auto& config = run.config;
    RunDescription all;
    all.model_class = run.model.model().class_name;
    all.model_arguments = run.model.model().arguments;
    all.validation_errors = errors;
    if (!held_out.drag.empty()) all.held_out_errors = held_out;
    all.parts.clear();
    for (const auto& part : run.data.parts()) {
        all.parts.push_back({part.data, part.ranges, part.stored->facing});
        for (std::size_t f = 0; f < part.data.fields.size(); ++f)
            all.fields.push_back({part.data.fields[f], part.stored->train.channels()[f]});
    }
    if (config.data.shares_deviation) all.training_mean = values_on_host<float>(run.data.training_mean());
    if (const auto& targets = run.data.coefficient_targets()) {
        all.head = {names_of_coefficients(config.training.coefficient_weights), config.training.coefficient_features,
                    targets->means(), targets->deviations()};
    }
    all.shape_coefficients = run.data.shape_coefficients();
    all.seed = config.seed;
    all.has_step_draws = true;
    all.optimizer = config.training.optimizer;
    for (auto& groups = all.group_optimizers.emplace(); const auto& group : config.training.parameter_groups)
        if (!group.optimizer.empty()) groups.push_back(group.name + ": " + group.optimizer);
    std::ranges::sort(*all.group_optimizers);
    for (auto& groups = all.group_matches.emplace(); const auto& group : config.training.parameter_groups)
        if (!group.optimizer.empty()) groups.push_back(fmt::format("{}: {}", group.name, fmt::join(group.match, ", ")));
    for (auto& ids = all.train_cases.emplace(); const auto& source : run.data.cases().train) ids.push_back(source.id);
    for (auto& ids = all.val_cases.emplace(); const auto& source : run.data.cases().val) ids.push_back(source.id);
    all.loss = loss_text(config);
    for (const auto& set : config.data.sets) {
        if (set.share > 0) all.shares_of_sets.push_back(set.share);
    }
    all.steps_per_epoch = run.data.steps_per_epoch();
    all.cases_per_step = run.data.order().cases_per_step();
    all.num_steps = run.num_steps();
    all.progress = run.progress;
    run.model.update().describe(all);
    return all;
}

void save(const Run& run, const char* name, const nlohmann::json& errors, const HeldOutErrors& held_out)
{
    std::optional<TrainedValues> values;
    if (run.ranks.is_first() || run.model.is_sharded()) values = run.model.values();
    // Throws if a message between devices has failed: the weights would be wrong. Each group has a transport of its
    // own.
    for (const auto& mesh : {run.ranks.mesh, run.ranks.blocks})
        for (std::int64_t axis = 0; axis < mesh->num_axes(); ++axis) mesh->group(axis).barrier();
    run.ranks.all().barrier();
    if (!run.ranks.is_first()) return;
    const auto path = checkpoint_path(run.config, name);
    std::filesystem::create_directories(path.parent_path());
    const auto& of_inputs = run.data.stored().of_inputs;
    save_checkpoint(path, *values, run.data.normalizer(), describe(run, errors, held_out),
                    of_inputs ? &*of_inputs : nullptr);
}

void resume(Run& run, bool accepts_data)
{
    const Checkpoint checkpoint(checkpoint_path(run.config, "last"));
    const auto& before = checkpoint.description();
    const auto now = describe(run, {});
    require_same_run(before, now);
    if (const auto changes = changes_of_data(run, checkpoint); !changes.empty()) {
        const auto what =
            fmt::format("the training cases are not what they were when the run began: {}", fmt::join(changes, "; "));
        if (!accepts_data)
            throw InvalidInput("resume: {}. Put them back, or start a new run with training.init. To go on "
                               "with them, scaled as before: --accept-data.",
                               what);
        run.log.say("meshard train: warning: accepted, though: " + what);
    }
    run.model.load(checkpoint);
    const auto device = run.ranks.device();
    run.data.set_scales(checkpoint.normalizer().on(device), checkpoint.training_mean().to(device));
    if (run.config.data.is_grid || run.data.states())
        run.data.set_input_scales(checkpoint.input_normalizer().on(device));
    run.progress = before.progress;
    if (run.config.training.scheduler != "plateau") run.progress.plateau = {};
    const bool is_other_loss = now.val_cases->empty() && before.loss && before.loss != now.loss;
    if ((before.val_cases && before.val_cases != now.val_cases) || is_other_loss) {
        run.progress.best_error = RunProgress().best_error;
        run.progress.plateau.best = PlateauState().best;
        run.progress.early_stop = {};
        run.log.say(is_other_loss
                        ? "meshard train: warning: the loss is another than before, and there are no validation cases. "
                          "It is not compared with earlier ones: the next epoch begins a new best checkpoint"
                        : "meshard train: warning: the validation cases are others than before. Their errors are not "
                          "compared with earlier ones: the next validation begins a new best checkpoint");
    }
    if (const auto planned = before.num_steps.value_or(run.num_steps()); planned != run.num_steps()) {
        run.log.say("the learning rate was planned for {} steps, and goes on as one for {} does", planned,
                    run.num_steps());
    }
    if (!before.has_step_draws) {
        run.log.say("meshard train: warning: the checkpoint is of an earlier meshard, whose draws depended on all that "
                    "was drawn before: with dropout, or "
                    "Transolver++'s noise, the run does not go on exactly as it would have without the stop");
    }
    run.log.go_back_to(run.progress.num_steps, run.data.steps_per_epoch(), run.is_over());
}

}  // namespace meshard
