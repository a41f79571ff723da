// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/training/run_messages.h"

#include "apps/console/text_table.h"
#include "apps/devices/device_load.h"
#include "apps/devices/rank_device.h"
#include "apps/learning/cases/case_tensors.h"
#include "apps/learning/settings/training_config.h"
#include "models/layers/block_form.h"
#include "models/registry/registry.h"
#include "partition/error.h"
#include "sharding/memory/saved_tensors.h"
#include "sharding/ranks/device_mesh.h"
#include "sharding/tensor/shard_tensor.h"
#include "sharding/transport/launch.h"

#include <ATen/ATen.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <limits>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace meshard {
namespace {

constexpr double kNumbersOfWeight = 4;  // itself, its gradient, and AdamW's two means

bool are_same(const BlockChoice& a, const BlockChoice& b)
{
    return a.form == b.form &&
           std::string_view(a.why_not_fused ? a.why_not_fused : "") == (b.why_not_fused ? b.why_not_fused : "");
}

/// One line of the table for each run of blocks that run alike.
void add_forms(TextTable& table, std::string phase, const Model& model, const at::Tensor& points)
{
    auto* blocks = dynamic_cast<HasBlockForms*>(model.module.get());
    const auto choices = blocks ? blocks->block_forms(points) : std::vector<BlockChoice>();
    if (choices.empty())
        table.add_row({phase, "eager: " + model.class_name + " has no blocks of slice attention that could be fused"});
    for (auto first = choices.begin(); first != choices.end();) {
        const auto end =
            std::find_if(first, choices.end(), [&](const auto& choice) { return !are_same(choice, *first); });
        auto text = fmt::format("block{} {}", end - first == 1 ? "" : "s", first - choices.begin() + 1);
        if (end - first > 1) text += fmt::format(" to {}", end - choices.begin());
        text += fmt::format(": {}", name_of(first->form));
        if (first->why_not_fused) text += fmt::format(", not fused: {}", first->why_not_fused);
        table.add_row({std::exchange(phase, ""), text});
        first = end;
    }
}

std::string points_text(const CaseTensors& example, const DeviceMesh& device_mesh)
{
    const auto own = to_local(example.inputs.embedding).size(1);
    auto extremes = torch::tensor({own, -own});
    device_mesh.all().all_reduce(extremes, Reduction::Max);
    const auto most = extremes[0].item<std::int64_t>(), fewest = -extremes[1].item<std::int64_t>();
    return fmt::format("{} in case {}, {}{} a rank", example.num_points, example.id,
                       fewest == most ? "" : fmt::format("{} to ", fewest), most);
}

/// Bytes of the tensors that a forward pass saves for backward, each once, without the parameters. None is really kept:
/// the pass takes the memory of inference.
std::int64_t bytes_saved(const torch::nn::Module& module, const std::function<void()>& forward)
{
    std::int64_t bytes = 0;
    std::set<c10::weak_intrusive_ptr<c10::StorageImpl>> seen;
    for (const auto& parameter : module.parameters()) seen.insert(parameter.storage().getWeakStorageImpl());
    const SavedTensorHooks hooks([&](const at::Tensor& tensor) -> UnpackSaved {
        const auto& storage = local_of(tensor).storage();
        if (seen.insert(storage.getWeakStorageImpl()).second) bytes += static_cast<std::int64_t>(storage.nbytes());
        return [] { return at::Tensor(); };
    });
    forward();
    return bytes;
}

/// A line of the table for each memory mode that this case can have.
/// @param holders   ranks among which each parameter is cut
void add_needs(TextTable& table, torch::nn::Module& module, MemoryMode own, double points, std::int64_t holders,
               const DeviceMesh& device_mesh, const at::Device& device, const std::function<void()>& forward)
{
    const auto num_ranks = static_cast<double>(device_mesh.group(device_mesh.axis("domain")).size());
    const auto total = static_cast<double>(memory_in_use(device).total);
    double weights = 0;
    for (const auto& parameter : module.parameters())
        weights += kNumbersOfWeight * static_cast<double>(parameter.nbytes()) / static_cast<double>(holders);
    const auto text = [](double bytes) { return bytes_text(static_cast<std::uint64_t>(bytes)); };
    std::string word = "needs";
    for (const auto mode : memory_modes(module, own)) {
        auto bytes = torch::zeros({1}, torch::kLong);
        try {
            set_memory(module, mode);
            bytes += bytes_saved(module, forward);
        } catch (const InvalidInput&) {  // not with these settings
            continue;
        }
        device_mesh.all().all_reduce(bytes, Reduction::Max);
        const auto kept = static_cast<double>(bytes.item<std::int64_t>());
        auto line = fmt::format("{}: {} a point, {} a rank with weights", name_of(mode),
                                text(kept * num_ranks / points), text(kept + weights));
        if (total > 0 && kept + weights > total) {
            line += ", does not fit into " + text(total);
            if (weights < total)
                line += fmt::format("; on {:.0f} ranks it does", std::ceil(kept * num_ranks / (total - weights)));
        }
        table.add_row({std::exchange(word, ""), line});
    }
    set_memory(module, own);
}

/// Says what a training step and a validation of this model would run on such a case: the model and its parameters,
/// ranks, points of a rank, precision, memory mode, what each memory mode keeps of a point, whether that fits into the
/// device and on how many ranks it would, and the form of each block with what keeps it from being fused. Lines of a
/// word and what it is, the same on every rank. Collective.
/// @param model     in the memory mode and with the weights that it is to train with; it is left in training
/// @param example   the case, all its parts
/// @param forward   takes the case through the model
/// @throws InvalidInput for a memory mode that the model cannot have
std::string training_plan(const Model& model, const TrainingRunConfig& config, std::span<const CaseTensors> example,
                          const DeviceMesh& device_mesh, World& world, const std::function<void()>& forward)
{
    std::int64_t num_parameters = 0;
    for (const auto& parameter : model.module->parameters()) num_parameters += parameter.numel();
    const auto size = [&](const char* axis) { return device_mesh.group(device_mesh.axis(axis)).size(); };
    TextTable table("ll");
    table.add_row({"model", fmt::format("{}, {} parameters", config.model.name, num_parameters)});
    table.add_row({"ranks", fmt::format("{}: {} data x {} domain, transport {}", world.size(), size("data"),
                                        size("domain"), world.carrier(world.device()).text())});
    table.add_row({"device", device_name(world.device())});
    table.add_row({"points", points_text(example.front(), device_mesh)});
    table.add_row({"precision", name_of(config.training.precision)});
    table.add_row({"memory", std::string(name_of(config.training.memory)) +
                                 (config.training.offload ? ", large tensors in the host's memory" : "")});

    const PrecisionGuard guard(config.training.precision, world.device().type());
    model.module->train();
    double points = 0;
    for (const auto& part : example) points += static_cast<double>(part.num_points);
    add_needs(table, *model.module, config.training.memory, points, config.shard_parameters ? world.size() : 1,
              device_mesh, world.device(), forward);
    add_forms(table, "training", model, example.front().inputs.embedding);
    {
        const torch::NoGradGuard no_grad;
        model.module->eval();
        add_forms(table, "validation", model, example.front().inputs.embedding);
        model.module->train();
    }
    std::ostringstream text;
    text << table;
    return text.str();
}

using Json = nlohmann::ordered_json;

constexpr double kMuchWider = 3;  // deviation of a field in one data set over that in another

/// Returns the unbiased deviation of each channel.
std::vector<double> deviations_of(const ChannelStatistics& statistics)
{
    auto deviations = statistics.squared_differences();
    for (auto& value : deviations)
        value = std::sqrt(value / static_cast<double>(std::max<std::int64_t>(1, statistics.num_rows() - 1)));
    return deviations;
}

void record_dataset(Run& run)
{
    const auto& parts = run.data.parts();
    const auto& stored = run.data.stored();
    Json line{{"phase", "dataset"}};
    line["cases"] = {{"train", stored.train.size()}, {"val", stored.val.size()}, {"test", stored.test.size()}};
    for (std::size_t part = 0; part < parts.size(); ++part) {
        const auto& cases = *parts[part].stored;
        line[part == 0 ? "points" : "volume_points"] = {
            {"train", cases.train.num_points()}, {"val", cases.val.num_points()}, {"test", cases.test.num_points()}};
    }
    const auto normalizer = run.data.normalizer();
    for (std::int64_t c = 0; c < normalizer.mean.size(0); ++c) {
        line["mean"].push_back(normalizer.mean[c].item<double>());
        line["std"].push_back(normalizer.std[c].item<double>());
    }
    for (const auto& part : parts) {
        for (const auto& [set, of_set] : part.of_sets) {
            for (const auto mean : of_set.mean()) line["sets"][set]["mean"].push_back(mean);
            for (const auto deviation : deviations_of(of_set)) line["sets"][set]["std"].push_back(deviation);
        }
    }
    line["shards_per_case"] = stored.num_parts;
    line["seconds"] = run.seconds_in_preparation;
    run.log.record(line);
}

void say_cases(Run& run)
{
    const auto& stored = run.data.stored();
    const auto& cases = run.data.cases();
    run.log.say("{} training, {} validation, {} test cases, {} points in training; prepared in {:.1f} s",
                stored.train.size(), stored.val.size(), stored.test.size(), stored.train.num_points(),
                run.seconds_in_preparation);
    if (const auto& parts = run.data.parts(); parts.size() > 1) {
        run.log.say("of surfaces, and {} points of volumes; {} case(s) with only one of the two are left out",
                    parts[1].stored->train.num_points(), cases.num_left_out);
    }
    if (const auto& missing = cases.without_file; !missing.empty()) {
        run.log.say("look at this: {} case(s) of the table have a split and no file, and are left out: {}{}{}",
                    missing.size(), missing[0], missing.size() > 1 ? ", " + missing[1] : "",
                    missing.size() > 2 ? ", ..." : "");
    }
    const auto of_sets = run.data.order().order().cases_of_sets();
    for (std::size_t s = 0; s < of_sets.size(); ++s) {
        const auto& name = run.config.data.sets[s].name;
        run.log.say("{} of the {} cases of an epoch are of {}, which has {}", of_sets[s], run.data.num_in_epoch(), name,
                    std::ranges::count(cases.train, name, &CaseSource::set));
    }
}

/// Says where all data sets are scaled by one deviation that fits some of them badly.
void say_scales_of_sets(TrainingLog& log, const CasePart& part)
{
    std::ptrdiff_t first = 0;
    for (std::size_t f = 0; f < part.data.fields.size(); ++f) {
        const auto end = first + part.stored->train.channels()[f];
        std::pair<double, std::string> least{std::numeric_limits<double>::infinity(), ""}, most{0, ""};
        for (const auto& [set, of_set] : part.of_sets) {
            const auto deviations = deviations_of(of_set);
            const std::pair size{*std::max_element(deviations.begin() + first, deviations.begin() + end), set};
            least = std::min(least, size);
            most = std::max(most, size);
        }
        first = end;
        if (part.of_sets.size() < 2 || most.first < kMuchWider * least.first) continue;
        log.say("{} deviates by {:.3g} in {} and by {:.3g} in {}; one scale serves all sets, and errors of "
                "the former count more. Without units "
                "(data.targets: nondimensional) they may be alike",
                part.data.fields[f].name, most.first, most.second, least.first, least.second);
    }
}

/// Says of which numbers of a state the change in a step is lost in the rounding of single precision, in which states
/// are told and predicted.
void say_rounding_of_states(Run& run)
{
    constexpr double kRounding = std::numeric_limits<float>::epsilon(), kFew = 8;
    const auto& states = run.data.states();
    const auto& part = run.data.parts().front();
    if (!states || part.data.series.learnt == LearntState::Next) return;
    const auto& of_told = *part.stored->of_inputs;
    const auto step = part.data.series.learnt == LearntState::Rate ? part.data.series.mean_step : 1;
    for (std::int64_t c = 0; c < states->num_fields(); ++c) {
        const auto told = c + states->first();
        const auto change = part.normalizer.std[c].item<double>() * step;
        const auto size = std::abs(of_told.mean[told].item<double>()) + of_told.std[told].item<double>();
        if (change == 0 || change > kFew * kRounding * size) continue;
        run.log.say("data: look at this: {} changes by about {:.3g} in a step and is about {:.3g}, of which "
                    "single precision tells {:.2g}: subtract a level from it",
                    part.data.series.told[c], change, size, kRounding * size);
    }
}

void say_findings(Run& run)
{
    say_rounding_of_states(run);
    for (const auto& part : run.data.parts()) say_scales_of_sets(run.log, part);
    bool is_volume = false;
    for (const auto& part : run.data.parts()) {
        const auto& findings = part.findings;
        if (!findings.numbers.empty()) {
            Json found{{"phase", "data"}};
            if (is_volume) found["part"] = "volume";
            found.update(findings.numbers);
            run.log.record(found);
        }
        const std::string who = is_volume ? "data, volume: " : "data: ";
        for (const auto& sentence : findings.found) run.log.say(who + sentence);
        for (const auto& warning : findings.warnings) run.log.say(who + "look at this: " + warning);
        for (const auto& contradiction : findings.contradictions)
            run.log.say(who + "accepted, though: " + contradiction);
        is_volume = true;
    }
}

void say_model(Run& run)
{
    const auto& training = run.config.training;
    const auto& ranks = run.ranks;
    const auto& order = run.data.order();
    run.log.say("{} with {} parameters{} on {} rank(s): {} data x {} domain, {}", run.config.model.name,
                run.model.num_parameters(), run.model.is_sharded() ? ", cut among all ranks," : "",
                ranks.mesh->num_ranks(), ranks.num_groups, ranks.domain->num_ranks(),
                device_text(ranks.world, ranks.all()));
    if (const auto& blocks = *ranks.blocks; blocks.num_axes() > 1) {
        std::vector<std::int64_t> cut;
        for (std::int64_t axis = 0; axis < blocks.num_axes(); ++axis) cut.push_back(blocks.size(axis));
        run.log.say("each grid is cut in blocks: parallel.domain is [{}]", fmt::join(cut, ", "));
    }
    if (training.precision == Precision::TF32 && run.model.module().parameters().front().is_cpu())
        run.log.say("training.precision tf32: products are rounded on GPUs only; on CPUs it is float32");
    if (training.offload && ranks.device().is_cpu())
        run.log.say("training.offload: ranks compute on CPUs, where nothing is moved");
    if (training.graph_capture && !run.model.graphs())
        run.log.say("training.graph_capture: steps run as they are: " + run.model.why_no_graphs());
    const auto num_last = order.cases_in_step(order.steps_per_epoch() - 1);
    if (num_last < order.cases_per_step() && training.accumulate > 1) {
        run.log.say("{} training case(s), {} a step: the last step of an epoch has {}, so that each case counts once",
                    run.data.num_in_epoch(), order.cases_per_step(), num_last);
    } else if (num_last < ranks.num_groups) {
        run.log.say("{} training case(s) on {} data groups: the last step of an epoch has {}, so that each "
                    "case counts once; the other groups then "
                    "add nothing",
                    run.data.num_in_epoch(), ranks.num_groups, num_last);
    }
}

}  // namespace

void say_start(Run& run)
{
    record_dataset(run);
    say_cases(run);
    say_findings(run);
    say_model(run);
    if (run.progress.num_steps == 0) return;
    run.log.say("resumed after step {}", run.progress.num_steps);
    if (run.progress.num_steps < run.num_steps_limit()) {
        if (run.is_over())
            run.log.say(
                "training.early_stop has ended the run; training.early_stop.patience (0: none) can be set to more");
        return;
    }
    run.log.say("all {} steps are done; training.num_epochs or training.max_steps (0: no limit) can be set to more",
                run.num_steps_limit());
}

void print_plan(Run& run)
{
    const auto example = ExampleSequence(run.data, &RunCases::train, turn_of(0)).next();
    const auto plan = training_plan(run.model.model(), run.config, example, *run.ranks.mesh, run.ranks.world,
                                    [&] { run.model.predict(example); });
    if (run.ranks.is_first()) std::cout << plan << std::flush;
}

void record_memory(Run& run)
{
    const auto [parameters, gradients, optimizer] = run.model.bytes_held();
    run.log.record({{"phase", "memory"},
                    {"parameter_bytes", parameters},
                    {"gradient_bytes", gradients},
                    {"optimizer_bytes", optimizer}});
}

void say_end(Run& run, std::int64_t first_step)
{
    if (const auto& graphs = run.model.graphs(); graphs && !graphs->why_not()) {
        run.log.say("training.graph_capture: {} kind(s) of steps were recorded, and {} of {} steps ran from there",
                    graphs->num_graphs(), graphs->num_replays(), run.progress.num_steps - first_step);
    }
    run.log.say("done in {}; the run lies in {}", duration_text(Run::seconds_since(run.start)),
                run.config.run_dir().string());
}

}  // namespace meshard
