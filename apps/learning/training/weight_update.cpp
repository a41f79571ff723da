// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/training/weight_update.h"

#include "partition/error.h"
#include "sharding/parameters/gradient_norm.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <fnmatch.h>
#include <iterator>

namespace meshard {
namespace {

constexpr double kLeastScale = 1.0 / 65536;

UpdateRule rule_named(const std::string& name)
{
    return name == "lion" ? UpdateRule::Lion : name == "muon" ? UpdateRule::Muon : UpdateRule::AdamW;
}

struct NamedParameter {
    std::string name;
    OptimizedParameter parameter;
};

std::vector<NamedParameter> trained_parameters(const torch::nn::Module& model, const FullyShardedModule* sharded)
{
    std::vector<NamedParameter> all;
    const auto named = model.named_parameters();
    if (!sharded) {
        for (const auto& item : named) {
            if (item.value().requires_grad()) all.push_back({item.key(), {item.value(), item.value().sizes().vec()}});
        }
        return all;
    }
    const auto names = sharded->local_parameter_names();
    for (std::size_t i = 0; i < names.size(); ++i)
        all.push_back({names[i], {sharded->local_parameters()[i], sharded->whole_shape(named[names[i]]).vec()}});
    return all;
}

UpdateOptions update_options(const TrainingConfig& config, const ParameterGroupConfig* group)
{
    UpdateOptions options;
    options.rule = rule_named(group && !group->optimizer.empty() ? group->optimizer : config.optimizer);
    options.rate_factor = group && group->learning_rate ? *group->learning_rate / config.learning_rate : 1.0;
    options.weight_decay = group && group->weight_decay ? *group->weight_decay : config.weight_decay;
    options.betas = config.betas ? *config.betas : std::array{0.9, options.rule == UpdateRule::Lion ? 0.99 : 0.999};
    options.momentum = config.momentum;
    options.matches_adamw = config.muon_matches_adamw;
    return options;
}

/// Sorts parameters by the first group of the configuration that names them, those of none first. Those whose weights
/// do not decay form groups of their own.
std::vector<OptimizedGroup> optimized_groups(const TrainingConfig& config,
                                             const std::vector<NamedParameter>& parameters)
{
    const auto num_groups = config.parameter_groups.size() + 1;
    std::vector<OptimizedGroup> groups(2 * num_groups);
    for (std::size_t g = 0; g < num_groups; ++g) {
        groups[2 * g].options = groups[2 * g + 1].options =
            update_options(config, g == 0 ? nullptr : &config.parameter_groups[g - 1]);
        groups[2 * g + 1].options.weight_decay = 0;
    }
    for (const auto& [name, parameter] : parameters) {
        std::size_t g = 0;
        for (std::size_t k = config.parameter_groups.size(); k > 0; --k) {
            const auto& patterns = config.parameter_groups[k - 1].match;
            if (std::ranges::any_of(
                    patterns, [&](const auto& pattern) { return fnmatch(pattern.c_str(), name.c_str(), 0) == 0; }))
                g = k;
        }
        const bool decays = config.decay_vectors || parameter.shape.size() > 1;
        groups[2 * g + (decays ? 0 : 1)].parameters.push_back(parameter);
    }
    for (std::size_t g = 1; g < num_groups; ++g) {
        if (!groups[2 * g].parameters.empty() || !groups[2 * g + 1].parameters.empty()) continue;
        std::string names;
        for (const auto& [name, parameter] : parameters) names += (names.empty() ? "" : ", ") + name;
        throw InvalidInput("training.optimizer.groups.{} has no parameter: its patterns match none, or "
                           "groups before it have them all. The model has "
                           "{}.",
                           config.parameter_groups[g - 1].name, names);
    }
    std::erase_if(groups, [](const auto& group) { return group.parameters.empty(); });
    return groups;
}

}  // namespace

at::Tensor LossScaling::scaled(const at::Tensor& loss) const
{
    if (!on_device.defined()) return loss * scale;
    loss.register_hook([factor = on_device](const at::Tensor& gradient) { return gradient * factor; });
    return loss;
}

void LossScaling::put_on(const at::Device& device)
{
    on_device = at::full({}, scale, at::TensorOptions(at::kFloat).device(device));
}

void LossScaling::set_scale(double value)
{
    scale = value;
    if (on_device.defined()) on_device.fill_(scale);
}

bool LossScaling::unscale(const std::vector<at::Tensor>& gradients, const RankGroup& ranks)
{
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> defined;
    std::copy_if(gradients.begin(), gradients.end(), std::back_inserter(defined),
                 [](const at::Tensor& gradient) { return gradient.defined(); });
    bool all_finite = true;
    if (!defined.empty()) {
        const auto options = defined[0].options().dtype(at::kFloat).requires_grad(false);
        auto found = at::zeros({1}, options);
        at::_amp_foreach_non_finite_check_and_unscale_(defined, found, at::full({1}, 1 / scale, options));
        all_finite = found.item<float>() == 0;
    }
    all_finite = ranks.all_agree(all_finite);
    if (!all_finite) {
        set_scale(scale / 2);
        num_good_steps = 0;
        if (scale >= kLeastScale) return false;
        throw Error("training: gradients in float16 are not finite however small the loss is scaled. Set "
                    "training.precision to bfloat16 or float32.");
    }
    if (++num_good_steps == growth_interval) {
        set_scale(scale * 2);
        num_good_steps = 0;
    }
    return true;
}

WeightUpdate::WeightUpdate(const TrainingConfig& config, const torch::nn::Module& model,
                           const FullyShardedModule* sharded, const RankGroup& ranks)
    : max_norm_(config.clip_norm), may_skip_(config.max_skipped_steps > 0), ranks_(ranks),
      parts_of_(sharded ? &sharded->group() : nullptr),
      optimizers_(optimized_groups(config, trained_parameters(model, sharded)), parts_of_)
{
    if (config.precision == Precision::Float16) loss_scaling_.emplace();
    if (const auto all = parameters(); loss_scaling_ && !all.empty() && !all.front().is_cpu())
        loss_scaling_->put_on(all.front().device());
    if (config.average_decay > 0) average_.emplace(parameters(), config.average_decay);
}

/// Returns the gradients of what the optimisers take; undefined ones are among them.
std::vector<at::Tensor> WeightUpdate::gradients() const
{
    std::vector<at::Tensor> all;
    for (const auto& parameter : parameters()) all.push_back(parameter.grad());
    return all;
}

UpdateOutcome WeightUpdate::apply(double rate, const std::vector<at::Tensor>& losses)
{
    UpdateOutcome outcome;
    std::vector<at::Tensor> numbers;  // which must be finite
    if (may_skip_)
        for (const auto& loss : losses) numbers.push_back(to_local(loss).to(torch::kDouble));
    const auto are_finite = [&] {  // the one number that the host reads
        return ranks_.all_agree(at::stack(numbers).isfinite().all().item<bool>());
    };
    if (loss_scaling_)  // the scale has no part in a loss that is not finite
        outcome.is_taken = (!may_skip_ || are_finite()) && loss_scaling_->unscale(gradients(), ranks_);
    if (max_norm_ > 0 || may_skip_) outcome.gradient_norm = gradient_norm(parameters(), parts_of_);
    if (may_skip_ && outcome.is_taken) {
        numbers.push_back(outcome.gradient_norm);
        outcome.is_taken = are_finite();
    }
    if (!outcome.is_taken) return outcome;
    if (max_norm_ > 0) scale_to_norm(parameters(), outcome.gradient_norm, max_norm_);
    optimizers_.set_rate(rate);
    optimizers_.step();
    if (average_) average_->update();
    return outcome;
}

void WeightUpdate::describe(RunDescription& description) const
{
    if (loss_scaling_) description.loss_scale = {loss_scaling_->scale, loss_scaling_->num_good_steps};
    if (average_) description.average_updates = average_->num_updates();
}

void WeightUpdate::resume(const RunDescription& description)
{
    if (average_) average_->set_num_updates(description.average_updates.value_or(0));
    if (!loss_scaling_ || !description.loss_scale) return;
    loss_scaling_->set_scale(description.loss_scale->scale);
    loss_scaling_->num_good_steps = description.loss_scale->num_good_steps;
}

}  // namespace meshard
