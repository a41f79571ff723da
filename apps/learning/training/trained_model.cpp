// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/training/trained_model.h"

#include "apps/devices/rank_device.h"
#include "apps/learning/grids/grid_cases.h"
#include "apps/learning/settings/grid_settings.h"
#include "models/diffusion/edm_sampling.h"
#include "models/layers/precision.h"
#include "models/registry/encoded_model.h"
#include "models/registry/grid_forward.h"
#include "ops/slices/row_noise.h"
#include "partition/error.h"
#include "partition/random_numbers.h"
#include "sharding/memory/device_graph.h"
#include "sharding/memory/saved_tensors.h"
#include "sharding/parameters/move_module.h"

#include <ATen/record_function.h>
#include <fmt/core.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <map>
#include <numbers>
#include <set>

namespace meshard {
namespace {

// Relative deviations of loss and gradients, where a GPU's libraries choose other products in a graph.
constexpr double kRoundingInGraphs = 1e-4, kNarrowRoundingInGraphs = 2e-2;

std::array<at::Tensor*, 6> step_tensors(CaseTensors& one)
{
    return {&one.inputs.embedding, &one.inputs.positions, &one.inputs.constants,
            &one.inputs.time,      &one.target,           &one.measures};
}

/// Normal numbers (by the transform of Box and Muller, 1958) that depend on the points' ids, for rows (1, N, C).
at::Tensor normal_rows(const at::Tensor& like, std::uint64_t seed)
{
    RowNoise noise(seed);
    noise.set_rows({like});
    const auto length = (-2 * torch::log(1 - noise.draw(like))).sqrt();
    return length * torch::cos(2 * std::numbers::pi * noise.draw(like));
}

/// The example with these tensors in place of its own.
Example with_tensors(Example example, const std::vector<at::Tensor>& tensors)
{
    auto next = tensors.begin();
    for (auto& one : example) {
        for (auto* tensor : step_tensors(one)) *tensor = *next++;
    }
    return example;
}

}  // namespace

TrainedModel::TrainedModel(const TrainingRunConfig& config, TrainingData& data, const RunRanks& ranks, TrainingLog& log)
    : config_(config), data_(data), ranks_(ranks)
{
    make();
    const auto& training = config.training;
    set_memory(*model_.module, training.memory);
    if (!training.init.empty()) {
        for (const auto& note : load_weights(training.init, *model_.module, model_.class_name))
            log.say("{}: {}", training.init.string(), note);
    }
    move_module(*model_.module, ranks.device());
    if (config.shard_parameters) {
        // Parts that are used as they lie belong to one domain, whose ranks cut one direction: else all parameters are
        // gathered.
        auto kept_parts = ranks.num_groups == 1 && ranks.blocks == ranks.domain
                              ? share_parameters(model_, ranks.domain->num_ranks())
                              : std::map<std::string, AxisLayout>();
        sharded_.emplace(fully_shard(*model_.module, ranks.mesh,
                                     {.is_unit = {}, .over_all_axes = true, .kept_parts = std::move(kept_parts)}));
    } else {
        replicated_.emplace(replicate(*model_.module, ranks.mesh));
    }
    allow_tf32(training.precision == Precision::TF32);
    update_.emplace(training, *model_.module, sharded_ ? &*sharded_ : nullptr, ranks.all());
    if (config.data.is_grid) check_grids();
    if (ranks.num_groups == 1 && !update_->may_leave_out()) return;
    for (const auto& buffer : model_.module->named_buffers())
        if (buffer.key().ends_with("running_mean") || buffer.key().ends_with("running_var"))
            statistics_.push_back(buffer.value());
}

void TrainedModel::begin_step()
{
    update_->zero_grad();
    statistics_before_.clear();
    if (!update_->may_leave_out()) return;
    for (const auto& one : statistics_) statistics_before_.push_back(one.clone());
}

void TrainedModel::settle_statistics(bool is_taken)
{
    if (statistics_.empty()) return;
    const torch::NoGradGuard no_grad;
    if (!is_taken) {
        has_counted_ = false;
        for (std::size_t i = 0; i < statistics_.size(); ++i) statistics_[i].copy_(statistics_before_[i]);
        return;
    }
    if (ranks_.num_groups == 1) return;
    const double counts = std::exchange(has_counted_, false) ? 1 : 0;
    std::vector<at::Tensor> parts;
    for (const auto& one : statistics_) parts.push_back(one.flatten() * counts);
    parts.push_back(at::full({1}, counts, statistics_.front().options()));
    auto means = at::cat(parts);
    ranks_.across_groups().all_reduce(means);
    means /= means.select(0, means.numel() - 1).clone();
    std::int64_t first = 0;
    for (auto& one : statistics_) {
        one.copy_(means.narrow(0, first, one.numel()).view_as(one));
        first += one.numel();
    }
}

void TrainedModel::make()
{
    torch::manual_seed(config_.seed);
    if (config_.data.is_grid) {
        const auto widths = grid_widths(data_.training_cases().stored(0), data_.parts().front().data);
        std::pair made(config_.model.name, grid_model_arguments(config_.model, widths));
        if (const auto& denoiser = find_model(made.first).of_grids()->denoiser) made = denoiser(made.second);
        model_ = make_model(made.first, made.second);
        take_rows_of_grids(model_, *data_.stored().of_inputs, !config_.data.mask.empty(), data_.categories());
        return;
    }
    std::array<std::int64_t, 2> num_channels{};
    for (std::size_t part = 0; part < data_.parts().size(); ++part) {
        for (const auto count : data_.parts()[part].stored->train.channels()) num_channels[part] += count;
    }
    const auto& targets = data_.coefficient_targets();
    const auto num_features = targets ? config_.training.coefficient_features : 0;
    model_ = make_model(config_.model.name, model_arguments(config_.model, data_.parts().front().data,
                                                            num_channels[0] + num_features, num_channels[1]));
    encode_coordinates(model_, config_.data.encoding, static_cast<std::uint64_t>(config_.seed));
    encode_categories(model_, data_.categories());
    if (targets) forward_with_head_ = add_coefficient_head(model_, num_features, std::ssize(targets->means()));
}

/// Tries one grid of each shape, so that the model refuses those that it cannot take before the first step.
void TrainedModel::check_grids()
{
    const torch::NoGradGuard no_grad;
    model_.module->eval();
    std::set<std::vector<std::int64_t>> tried;
    const auto& stored = data_.stored();
    for (const auto* cases : {&stored.train, &stored.val, &stored.test}) {
        for (std::int64_t i = 0; i < cases->size(); ++i) {
            if (!tried.insert(cases->stored(i).extents).second) continue;
            const auto example = CaseSequence(*cases, turn_of(i)).next();
            try {
                predict({example});
            } catch (const InvalidInput& wrong) {
                throw InvalidInput("case {}, a grid of {}: {}", example.id, extents_text(example.inputs.grid),
                                   wrong.what());
            }
        }
    }
    model_.module->train();
}

std::int64_t TrainedModel::num_parameters() const
{
    std::int64_t count = 0;
    for (const auto& parameter : model_.module->parameters())
        count += sharded_ ? c10::multiply_integers(sharded_->whole_shape(parameter)) : parameter.numel();
    return count;
}

void TrainedModel::seed_sample(std::uint64_t seed)
{
    if (model_.sampling) model_.sampling->seed = seed;
}

CasePrediction TrainedModel::predict(const Example& example)
{
    RECORD_USER_SCOPE("forward");
    const PrecisionGuard precision(config_.training.precision, ranks_.device().type());
    if (forward_with_head_) {
        const auto predicted = forward_with_head_(inputs_of_model(example[0].inputs));
        return {{predicted.fields.to(torch::kFloat)}, predicted.coefficients.to(torch::kFloat)};
    }
    if (example.size() == 1) return {{model_.forward(inputs_of_model(example[0].inputs)).to(torch::kFloat)}, {}};
    const auto fields = model_.forward_parts(&example[0].inputs, &example[1].inputs);
    return {{fields.surface.to(torch::kFloat), fields.volume.to(torch::kFloat)}, {}};
}

/// Normalises what points are told of the states of a run.
PointInputs TrainedModel::inputs_of_model(const PointInputs& inputs) const
{
    if (!data_.states() || config_.data.is_grid) return inputs;  // models of grids do it themselves
    auto normalized = inputs;
    normalized.embedding = data_.stored().of_inputs->normalize(inputs.embedding);
    return normalized;
}

at::Tensor TrainedModel::next_state(const PointInputs& inputs, const CasePrediction& prediction) const
{
    return data_.states()->next(inputs, data_.parts().front().normalizer.denormalize(prediction.fields.front()));
}

/// Adds normal noise to the last state that is told.
PointInputs TrainedModel::with_noise(const PointInputs& inputs, const CaseFrame& frame, std::uint64_t seed) const
{
    const auto& states = *data_.states();
    const auto state = states.state(inputs);
    const auto deviation = data_.stored().of_inputs->std.narrow(0, states.first(), states.num_fields());
    return states.with_state(inputs, state + normal_rows(state, seed) * (deviation * config_.training.unroll.noise),
                             frame);
}

/// The loss of a denoiser at one level of noise (Karras et al. 2022, equation 8).
at::Tensor TrainedModel::denoising_loss(const CaseTensors& example, std::uint64_t seed) const
{
    RECORD_USER_SCOPE("forward");
    const PrecisionGuard precision(config_.training.precision, ranks_.device().type());
    RandomNumbers seeds(seed);
    const auto level = drawn_level(seeds.next());
    const auto noise = normal_rows(example.target, seeds.next());
    const auto clean = normalized_target(0, example);
    const auto denoised = model_.denoise(example.inputs, clean + noise * level, level).to(torch::kFloat);
    return data_.parts().front().loss(denoised, clean, example.measures) * loss_weight(level);
}

at::Tensor TrainedModel::loss(const CasePrediction& prediction, const Example& example) const
{
    if (example.size() == 1) {
        const auto loss = loss_of_part(0, prediction.fields[0], example[0]);
        const auto& targets = data_.coefficient_targets();
        return targets && model_.module->is_training() ? loss + targets->loss(prediction.coefficients, example[0].id)
                                                       : loss;
    }
    at::Tensor sum;
    for (std::size_t part = 0; part < example.size(); ++part) {
        const auto weighted =
            loss_of_part(part, prediction.fields[part], example[part]) * config_.training.part_weights[part];
        sum = sum.defined() ? sum + weighted : weighted;
    }
    return sum;
}

at::Tensor TrainedModel::normalized_target(std::size_t index, const CaseTensors& example) const
{
    const auto& part = data_.parts()[index];
    const auto target = part.normalizer.normalize(part.scalings.at(example.id).without_unit(example.target));
    return part.data.mask.empty() ? target : zero_for_nan(target);
}

at::Tensor TrainedModel::loss_of_part(std::size_t index, const at::Tensor& prediction, const CaseTensors& example) const
{
    return data_.parts()[index].loss(prediction, normalized_target(index, example), example.measures);
}

/// Computes the loss and its gradients. Tensors that backward needs wait for it where the settings say.
at::Tensor TrainedModel::differentiated(const Example& example, double weight)
{
    std::optional<OffloadSavedTensors> offload;
    if (config_.training.offload && !ranks_.device().is_cpu())
        offload.emplace(OffloadOptions{.stay = module().parameters()});
    const auto prediction = predict(example);
    offload.reset();
    const auto loss = this->loss(prediction, example);
    RECORD_USER_SCOPE("backward");
    update_->scaled(weight == 1 ? loss : loss * weight).backward();
    return loss.detach();
}

at::Tensor TrainedModel::loss_with_gradients(const Example& example, double weight, TrainingLog& log)
{
    if (!graphs_ || graphs_->why_not()) return differentiated(example, weight);
    RECORD_USER_SCOPE("graph");
    const auto loss = graphs_->run(inputs_of_step(example, weight), [&](const std::vector<at::Tensor>& tensors) {
        return differentiated(with_tensors(example, tensors), weight);
    });
    if (graphs_->why_not()) log.say("training.graph_capture: steps run as they are: " + *graphs_->why_not());
    return loss;
}

at::Tensor TrainedModel::loss_with_gradients(const std::vector<Example>& steps, const CaseFrame& frame, double weight,
                                             std::uint64_t seed, TrainingLog& log)
{
    has_counted_ |= weight != 0;
    std::vector<at::Tensor> before;
    if (weight == 0)
        for (const auto& one : statistics_) before.push_back(one.clone());
    auto loss = differentiated(steps, frame, weight, seed, log);
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < before.size(); ++i) statistics_[i].copy_(before[i]);
    return loss;
}

at::Tensor TrainedModel::differentiated(const std::vector<Example>& steps, const CaseFrame& frame, double weight,
                                        std::uint64_t seed, TrainingLog& log)
{
    const auto& unroll = config_.training.unroll;
    const bool is_plain = steps.size() == 1 && unroll.noise == 0;
    if (is_plain && !model_.denoise) return loss_with_gradients(steps.front(), weight, log);
    const auto& states = data_.states();
    auto inputs = steps.front().front().inputs;
    if (unroll.noise > 0) inputs = with_noise(inputs, frame, seed);
    at::Tensor sum;
    for (std::size_t i = 0; i < steps.size(); ++i) {
        auto one = steps[i].front();
        if (!is_plain) {
            const auto truth = states->next(one.inputs, one.target);
            one.inputs = inputs;
            one.target = states->learnt(inputs, truth);
        }
        if (model_.denoise) {  // whose steps are not unrolled
            sum = denoising_loss(one, seed);
            break;
        }
        const auto prediction = predict({one});
        const auto loss = this->loss(prediction, {one});
        sum = sum.defined() ? sum + loss : loss;
        if (i + 1 == steps.size()) break;
        auto next = next_state(inputs, prediction);
        if (!unroll.through_all) next = next.detach();
        inputs = states->after(steps[i + 1].front().inputs, inputs, next, frame);
    }
    const auto loss = sum / static_cast<double>(steps.size());
    RECORD_USER_SCOPE("backward");
    update_->scaled(weight == 1 ? loss : loss * weight).backward();
    return loss.detach();
}

void TrainedModel::set_sync(bool is_last_case)
{
    if (replicated_) replicated_->set_sync(is_last_case);
}

void TrainedModel::start_graphs()
{
    if (!config_.training.graph_capture || !why_no_graphs().empty()) return;
    const auto device = ranks_.device();
    const double rounding =
        config_.training.precision == Precision::Float32 ? kRoundingInGraphs : kNarrowRoundingInGraphs;
    graphs_.emplace(model_.module->parameters(), model_.module->buffers(), device.type(), ranks_.all(),
                    device.is_cuda() ? rounding : 0);
}

std::string TrainedModel::why_no_graphs() const
{
    const auto device = ranks_.device();
    if (device.is_cpu()) return "ranks compute on CPUs, where nothing is recorded";
    if (!can_record(device.type())) return "work of this device cannot be recorded";
    if (ranks_.mesh->num_ranks() > 1 && ranks_.world.carrier(device).is_by_way_of_host)
        return "ranks share a device, and their messages go by way of the host";
    if (config_.training.accumulate > 1) return "a step adds up the gradients of several cases";
    if (config_.training.offload) return "training.offload copies tensors to the host in each step";
    if (config_.shard_parameters) return "parallel.parameters=sharded gathers them in each step";
    if (config_.training.unroll.num_steps > 1 || config_.training.unroll.noise > 0)
        return "a step goes through several states of a run, or adds noise to them";
    if (model_.denoise) return "a step draws a level of noise";
    for (const auto& part : data_.parts()) {
        if (part.data.needs_all_points && part.data.num_sampled > 0)
            return "the model knows all points of a case, of which others are drawn in each step";
    }
    return {};
}

/// Lists what a step depends on. Its case counts where loss or targets know more of that than its tensors.
StepInputs TrainedModel::inputs_of_step(const Example& example, double weight) const
{
    StepInputs inputs;
    inputs.key = fmt::format("{:.17g} ", weight);
    inputs.subject = example.front().id;
    bool knows_case = data_.coefficient_targets().has_value();
    for (std::size_t part = 0; part < example.size(); ++part) {
        auto one = example[part];
        knows_case |= data_.parts()[part].scalings.at(one.id).scale.defined();
        inputs.key += extents_text(one.inputs.grid) + " ";
        for (const auto* tensor : step_tensors(one)) inputs.tensors.push_back(*tensor);
        inputs.kept.push_back(one.inputs.body);
        inputs.kept.push_back(one.inputs.drawn_from);
    }
    if (knows_case) inputs.key += inputs.subject;
    return inputs;
}

TrainedValues TrainedModel::values() const
{
    return trained_values(*model_.module, update_->optimizers(), update_->average(), sharded_ ? &*sharded_ : nullptr);
}

void TrainedModel::load(const Checkpoint& checkpoint, bool to_train)
{
    const auto* sharded = sharded_ ? &*sharded_ : nullptr;
    checkpoint.load_weights(*model_.module, sharded);
    checkpoint.load_optimizer(*model_.module, update_->optimizers(), sharded);
    if (update_->average()) update_->average()->restart();
    // Without a mean of its own the run would judge by the raw weights, where the checkpoint has both.
    if (to_train || update_->average()) checkpoint.load_raw_weights(*model_.module, sharded);
    update_->resume(checkpoint.description());
    if (config_.data.is_grid)
        take_rows_of_grids(model_, checkpoint.input_normalizer(), !config_.data.mask.empty(), data_.categories());
}

std::array<std::int64_t, 3> TrainedModel::bytes_held() const
{
    auto bytes = torch::zeros({3}, torch::kLong);
    auto* const sums = bytes.mutable_data_ptr<std::int64_t>();
    for (const auto& part : sharded_ ? sharded_->local_parameters() : model_.module->parameters()) {
        sums[0] += static_cast<std::int64_t>(part.nbytes());
        if (part.grad().defined()) sums[1] += static_cast<std::int64_t>(part.grad().nbytes());
        const auto state = update_->optimizers().state(part);
        if (state)
            sums[2] += static_cast<std::int64_t>(state->mean.nbytes() +
                                                 (state->squares.defined() ? state->squares.nbytes() : 0));
    }
    ranks_.all().all_reduce(bytes, Reduction::Max);
    return {sums[0], sums[1], sums[2]};
}

DeviceLoad TrainedModel::load_of(const std::string& what, const CaseSet& cases, std::int64_t index, bool trains) const
{
    const auto num_ranks = ranks_.domain->num_ranks();
    const auto all = trains ? data_.points_in_step(index) : cases.num_points(index);
    DeviceLoad load{.device = ranks_.device(),
                    .what = fmt::format("{} of case {}", what, cases.id(index)),
                    .num_points = (all + num_ranks - 1) / num_ranks,
                    .num_ranks = num_ranks,
                    .memory = std::string(name_of(config_.training.memory)),
                    .mode_option = "training.memory=",
                    .rank_option = "--nproc ",
                    .fewer_points = trains && !config_.data.is_grid ? "data.sampling_resolution" : ""};
    for (const auto mode : memory_modes(*model_.module, config_.training.memory))
        load.modes.emplace_back(name_of(mode));
    if (load.modes.size() == 1) load.memory.clear();
    return load;
}

}  // namespace meshard
