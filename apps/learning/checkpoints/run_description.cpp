// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/checkpoints/run_description.h"

#include "apps/learning/settings/described_keys.h"
#include "io/checkpoints/safetensors.h"
#include "partition/error.h"

#include <fmt/core.h>
#include <torch/version.h>

namespace meshard {

static void describe(DescribedKeys& keys, DescribedField& field)
{
    keys.required("channels", field.num_channels);
    describe(keys, static_cast<FieldConfig&>(field));
}

static void describe(DescribedKeys& keys, DescribedHead& head)
{
    keys.required("names", head.names);
    keys.required("features", head.num_features);
    keys.required("means", head.means);
    keys.required("deviations", head.deviations);
}

static void describe(DescribedKeys& keys, HeldOutErrors& errors)
{
    keys.required("cd", errors.drag);
    keys.required("cl", errors.lift);
}

static void describe(DescribedKeys& keys, TrainedFacing& facing)
{
    keys.added("surfaces", facing.surfaces);
    keys.added("walls", facing.walls);
}

static void describe(DescribedKeys& keys, PlateauState& state)
{
    keys.required("factor", state.factor);
    keys.added("best", state.best);
    keys.required("bad_checks", state.bad_checks);
}

static void describe(DescribedKeys& keys, EarlyStopState& state)
{
    keys.added("best", state.best);
    keys.required("bad_checks", state.bad_checks);
}

static void describe(DescribedKeys& keys, LossScaleState& state)
{
    keys.required("scale", state.scale);
    keys.required("good_steps", state.num_good_steps);
}

/// Binds all keys. A file with a volume has the keys of its second part under names of their own.
static void describe(DescribedKeys& keys, RunDescription& run)
{
    const std::string draws_of_steps = "of each step";
    auto draws = run.has_step_draws ? draws_of_steps : "";
    keys.added("model_class", run.model_class);
    keys.required("model", run.model_arguments);
    for (std::size_t part = 0; part < run.parts.size(); ++part) {
        const std::string prefix = part == 1 ? "volume_" : "";
        keys.added(part == 1 ? "volume" : "data", run.parts[part].data);
        keys.added(prefix + "input_ranges", run.parts[part].ranges);
        keys.added(prefix + "facing", run.parts[part].facing);
    }
    keys.required("fields", run.fields);
    keys.optional("training_mean", run.training_mean);
    keys.optional("coefficients", run.head);
    keys.optional("shape_coefficients", run.shape_coefficients);
    keys.optional("val", run.validation_errors);
    keys.optional("val_errors_by_case", run.held_out_errors);
    keys.optional("seed", run.seed);
    keys.added("draws", draws);
    keys.added("optimizer", run.optimizer);
    keys.optional("optimizers_of_groups", run.group_optimizers);
    keys.optional("parameters_of_groups", run.group_matches);
    keys.optional("train_cases", run.train_cases);
    keys.optional("val_cases", run.val_cases);
    keys.optional("loss", run.loss);
    keys.optional("shares_of_sets", run.shares_of_sets);
    keys.optional("steps_per_epoch", run.steps_per_epoch);
    keys.optional("cases_per_step", run.cases_per_step);
    keys.optional("num_steps", run.num_steps);
    keys.required("step", run.progress.num_steps);
    keys.added("epoch_loss_sum", run.progress.epoch_loss_sum);
    keys.optional("epoch_cases_left_out", run.progress.num_left_out);
    keys.optional("skipped_in_a_row", run.progress.num_skipped);
    keys.added("best_error", run.progress.best_error);
    keys.optional("plateau", run.progress.plateau);
    keys.optional("early_stop", run.progress.early_stop);
    keys.optional("rank_shares", run.progress.rank_shares);
    keys.optional("optimizer_step", run.optimizer_step);
    keys.optional("loss_scale", run.loss_scale);
    keys.optional("average_updates", run.average_updates);
    run.has_step_draws = draws == draws_of_steps;
}

nlohmann::json to_json(const RunDescription& description)
{
    nlohmann::json json{{"format", "meshard checkpoint"}, {"version", checkpoint_version}, {"torch", TORCH_VERSION}};
    auto run = description;
    DescribedKeys keys(json);
    describe(keys, run);
    json["data"] = to_json(run.parts[0].data);
    if (run.parts.size() > 1) json["volume"] = to_json(run.parts[1].data);
    if (run.steps_per_epoch) json["epoch"] = (run.progress.num_steps + *run.steps_per_epoch - 1) / *run.steps_per_epoch;
    return json;
}

RunDescription run_description(const nlohmann::json& json, const std::filesystem::path& file)
{
    RunDescription run;
    if (json.contains("volume")) run.parts.resize(2);
    DescribedKeys keys(json, file.string());
    describe(keys, run);
    return run;
}

void require_same_run(const RunDescription& before, const RunDescription& now)
{
    constexpr const char* kAsItWas = "Leave it as it was, or start a new run.";
    const auto text = [](const auto& value) { return nlohmann::json(value).dump(); };
    const auto refuse = [](const std::string& what) { throw InvalidInput("resume: {}", what); };
    if (before.seed && before.seed != now.seed) {
        refuse(fmt::format(
            "the run was made with seed {}, which orders its cases and its draws, and seed is {} now. Leave it out.",
            *before.seed, *now.seed));
    }
    if (before.optimizer != now.optimizer) {
        refuse(fmt::format("the run's optimiser was {}, and training.optimizer.name is {} now. Leave it as it was, or "
                           "start a new run with training.init.",
                           before.optimizer, now.optimizer));
    }
    if (before.group_optimizers && before.group_optimizers != now.group_optimizers) {
        refuse(fmt::format("the optimisers of training.optimizer.groups were {} when the run began, and are {} now. {}",
                           text(*before.group_optimizers), text(*now.group_optimizers), kAsItWas));
    }
    if (before.group_matches && before.group_matches != now.group_matches) {
        refuse(fmt::format("the groups of training.optimizer.groups with optimisers of their own had the parameters {} "
                           "when the run began, and have {} now. {}",
                           text(*before.group_matches), text(*now.group_matches), kAsItWas));
    }
    if (before.parts.size() != now.parts.size()) {
        refuse(fmt::format("data.volume.files {} when the run began. {}",
                           now.parts.size() > 1 ? "is set now, and was not" : "was set", kAsItWas));
    }
    for (std::size_t part = 0; part < now.parts.size(); ++part) {
        const auto data_before = to_json(before.parts[part].data), data_now = to_json(now.parts[part].data);
        auto keys = data_before;  // of both: some are there only where they are set
        keys.update(data_now);
        for (const auto& [key, unused] : keys.items()) {
            const auto was = data_before.value(key, nlohmann::json()), is = data_now.value(key, nlohmann::json());
            if (was == is) continue;
            refuse(fmt::format("{}{} was {} when the run began, and is {} now. {}",
                               part == 1 ? "data.volume." : "data.", key, was.dump(), is.dump(), kAsItWas));
        }
    }
    if (before.shares_of_sets != now.shares_of_sets) {
        refuse(fmt::format("the shares of data.sets were {} when the run began, and are {} now. Leave them as they "
                           "were, or start a new run.",
                           text(before.shares_of_sets), text(now.shares_of_sets)));
    }
    const auto names_of_head = [](const RunDescription& run) {
        return run.head ? run.head->names : std::vector<std::string>();
    };
    if (names_of_head(before) != names_of_head(now)) {
        refuse(fmt::format("training.coefficient_weights gave the model a head for {} when the run began, and would "
                           "give it one for {} now. {}",
                           text(names_of_head(before)), text(names_of_head(now)), kAsItWas));
    }
    if (before.train_cases && before.train_cases != now.train_cases) {
        refuse(fmt::format("the run trained on {} cases, and data gives {} or others now. Use the same cases "
                           "(data.root, data.split), or start a new run.",
                           before.train_cases->size(), now.train_cases->size()));
    }
    if (before.steps_per_epoch && before.steps_per_epoch != now.steps_per_epoch) {
        refuse(fmt::format("the run had {} steps an epoch, and has {} now. Use the same cases and as many data groups.",
                           *before.steps_per_epoch, *now.steps_per_epoch));
    }
    const bool is_within_epoch = before.steps_per_epoch && before.progress.num_steps % *before.steps_per_epoch != 0;
    if (is_within_epoch && before.cases_per_step && before.cases_per_step != now.cases_per_step) {
        refuse(
            fmt::format("the run stopped within an epoch whose steps have {} cases each, and steps have {} now (data "
                        "groups times training.accumulate). Use as many until the epoch's end.",
                        *before.cases_per_step, *now.cases_per_step));
    }
}

}  // namespace meshard
