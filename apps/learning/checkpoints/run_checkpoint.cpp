// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/checkpoints/run_checkpoint.h"

#include "apps/learning/checkpoints/tensor_file.h"
#include "io/bytes/atomic_file.h"
#include "io/checkpoints/model_checkpoint.h"
#include "partition/error.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"

#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <memory>
#include <sstream>

namespace meshard {
namespace {

constexpr const char* kMetadataKey = checkpoint_key;
constexpr const char *kInputMean = "norm.input_mean", *kInputDeviation = "norm.input_std";

/// In single precision, as models are trained.
at::Tensor read_tensor(const NamedArray& array, const std::filesystem::path& path)
{
    if (array.type != ArrayType::F32 && array.type != ArrayType::F64) {
        throw IoError(path.string() + ": '" + array.name + "' is " + std::string(to_string(array.type)) +
                      "; expected F32 or F64.");
    }
    return to_tensor(array).to(torch::kFloat32);
}

NamedArray float_array(std::string name, const at::Tensor& tensor)
{
    return to_named_array(std::move(name), tensor.to(torch::kFloat32));
}

const NamedArray& require(const NamedArrays& arrays, const std::string& name, const std::filesystem::path& path)
{
    const auto* array = arrays.find(name);
    if (!array) throw IoError(path.string() + " has no '" + name + "'; it belongs to another model.");
    return *array;
}

/// The value of a parameter or buffer, of the shape that the model's has.
at::Tensor value_for(const NamedArrays& arrays, const std::string& name, at::IntArrayRef shape,
                     const std::filesystem::path& path)
{
    auto value = read_tensor(require(arrays, name, path), path);
    if (value.sizes() != shape) {
        std::ostringstream message;
        message << path.string() << ": '" << name << "' is " << value.sizes() << ", the model's is " << shape << ".";
        throw IoError(message.str());
    }
    return value;
}

/// Hands each parameter's and buffer's value to `copy`, by name.
/// @param sharded   null where every rank has whole parameters
template <class Copy>
void for_each_value(const NamedArrays& arrays, const std::filesystem::path& path, const torch::nn::Module& model,
                    const FullyShardedModule* sharded, Copy&& copy)
{
    torch::NoGradGuard no_grad;
    const auto parameters = model.named_parameters();
    const auto buffers = model.named_buffers();
    for (const auto& item : parameters) {
        const auto shape = sharded ? sharded->whole_shape(item.value()) : item.value().sizes();
        copy(item.key(), item.value(), value_for(arrays, item.key(), shape, path));
    }
    for (const auto& item : buffers)
        copy(item.key(), item.value(), value_for(arrays, item.key(), item.value().sizes(), path));
    for (const auto& array : arrays.arrays) {
        const bool is_other = array.name.starts_with("norm.") || array.name.starts_with("optimizer.");
        const auto name = first_name(array.name);
        if (!is_other && !parameters.contains(name) && !buffers.contains(name)) {
            throw IoError(path.string() + " has '" + array.name +
                          "', which the model has not; it belongs to another model.");
        }
    }
}

void copy_values(const NamedArrays& arrays, const std::filesystem::path& path, const torch::nn::Module& model)
{
    for_each_value(arrays, path, model, nullptr,
                   [](const std::string&, at::Tensor place, const at::Tensor& value) { place.copy_(value); });
}

std::string mean_of(const std::string& parameter)
{
    return "optimizer.exp_avg." + parameter;
}
std::string squares_of(const std::string& parameter)
{
    return "optimizer.exp_avg_sq." + parameter;
}

std::string raw_of(const std::string& parameter)
{
    return "optimizer.weights." + parameter;
}

/// This rank's values of a whole tensor, as the part lies.
at::Tensor part_of(const at::Tensor& whole, const at::Tensor& shard)
{
    return own_part(whole.reshape(shard.sizes()), *spec_of(shard)).clone(at::MemoryFormat::Contiguous);
}

}  // namespace

TrainedValues trained_values(const torch::nn::Module& model, const Optimizers& optimizers, const WeightAverage* average)
{
    TrainedValues values;
    for (const auto& item : model.named_parameters()) {
        const auto* mean = average ? average->mean_of(item.value()) : nullptr;
        values.tensors.emplace_back(item.key(), mean ? *mean : item.value());
        if (mean) values.tensors.emplace_back(raw_of(item.key()), item.value());
    }
    for (const auto& item : model.named_buffers()) values.tensors.emplace_back(item.key(), item.value());
    for (const auto& item : model.named_parameters()) {
        const auto state = optimizers.state(item.value());
        if (!state) continue;
        values.tensors.emplace_back(mean_of(item.key()), state->mean);
        if (state->squares.defined()) values.tensors.emplace_back(squares_of(item.key()), state->squares);
        values.optimizer_step = state->step;
    }
    return values;
}

TrainedValues trained_values(const torch::nn::Module& model, const FullyShardedModule& sharded,
                             const Optimizers& optimizers, const WeightAverage* average)
{
    torch::NoGradGuard no_grad;
    TrainedValues values;
    const bool is_first = sharded.group().rank() == 0;
    const auto parameters = model.named_parameters();
    const auto keep = [&](const std::string& name, const std::string& parameter, const at::Tensor& shard) {
        const auto whole = full_tensor(shard);
        if (is_first) values.tensors.emplace_back(name, whole.view(sharded.whole_shape(parameters[parameter])));
    };
    const auto names = sharded.local_parameter_names();
    const auto& parts = sharded.local_parameters();
    std::map<std::string, std::size_t> trained;
    for (std::size_t i = 0; i < names.size(); ++i) trained[names[i]] = i;
    for (const auto& [name, shard] : sharded.named_shards()) {
        const auto found = trained.find(name);
        const auto* mean = average && found != trained.end() ? average->mean_of(parts[found->second]) : nullptr;
        keep(name, name, mean ? sharded.as_shard(found->second, *mean) : shard);
        if (mean) keep(raw_of(name), name, shard);
    }
    for (const auto& item : model.named_buffers()) {
        if (is_first) values.tensors.emplace_back(item.key(), item.value());
    }
    // Steps that each parameter has done; what a rank holds nothing of says nothing.
    std::vector<std::int64_t> steps;
    for (const auto& part : parts) {
        const auto state = part.numel() > 0 ? optimizers.state(part) : std::nullopt;
        steps.push_back(state ? state->step : 0);
    }
    const auto of_ranks = sharded.group().all_gather_integers(steps);
    for (std::size_t i = 0; i < names.size(); ++i) {
        std::int64_t step = 0;
        for (const auto& of_rank : of_ranks) step = std::max(step, of_rank[i]);
        if (step == 0) continue;
        const auto state = steps[i] > 0 ? optimizers.state(parts[i]) : std::nullopt;
        keep(mean_of(names[i]), names[i], sharded.as_shard(i, state ? state->mean : torch::zeros_like(parts[i])));
        if (optimizers.keeps_squares(parts[i]))
            keep(squares_of(names[i]), names[i],
                 sharded.as_shard(i, state ? state->squares : torch::zeros_like(parts[i])));
        values.optimizer_step = step;
    }
    return values;
}

void save_checkpoint(const std::filesystem::path& path, const TrainedValues& values, const Normalizer& normalizer,
                     const nlohmann::json& description, const Normalizer* of_inputs)
{
    NamedArrays content;
    for (const auto& [name, tensor] : values.tensors) content.arrays.push_back(float_array(name, tensor));
    content.arrays.push_back(float_array("norm.mean", normalizer.mean));
    content.arrays.push_back(float_array("norm.std", normalizer.std));
    if (of_inputs) {
        content.arrays.push_back(float_array(kInputMean, of_inputs->mean));
        content.arrays.push_back(float_array(kInputDeviation, of_inputs->std));
    }
    auto complete = description;
    if (values.optimizer_step) complete["optimizer_step"] = *values.optimizer_step;
    content.metadata[kMetadataKey] = complete.dump();
    content.metadata["format"] = "pt";
    write_safetensors(path, content);
    auto beside = path;
    write_file_atomically(beside.replace_extension(".json"), complete.dump(2) + "\n");
}

Checkpoint::Checkpoint(const std::filesystem::path& path) : path_(path), arrays_(read_safetensors(path))
{
    const auto found = arrays_.metadata.find(kMetadataKey);
    if (found == arrays_.metadata.end())
        throw IoError(path.string() + " is no checkpoint of meshard: its metadata has no '" + kMetadataKey + "'.");
    description_ = nlohmann::json::parse(found->second, nullptr, false);
    if (description_.is_discarded()) throw IoError(path.string() + ": the metadata is damaged.");
}

Normalizer Checkpoint::normalizer() const
{
    return {read_tensor(require(arrays_, "norm.mean", path_), path_),
            read_tensor(require(arrays_, "norm.std", path_), path_)};
}

Normalizer Checkpoint::input_normalizer() const
{
    return {read_tensor(require(arrays_, kInputMean, path_), path_),
            read_tensor(require(arrays_, kInputDeviation, path_), path_)};
}

at::Tensor Checkpoint::training_mean() const
{
    const auto said = description_.find("training_mean");
    return said == description_.end() ? normalizer().mean : torch::tensor(said->get<std::vector<float>>());
}

void Checkpoint::load_weights(torch::nn::Module& model) const
{
    copy_values(arrays_, path_, model);
}

void Checkpoint::load_optimizer(const torch::nn::Module& model, Optimizers& optimizers) const
{
    for (const auto& item : model.named_parameters()) {
        const auto* squares = arrays_.find(squares_of(item.key()));
        if (!arrays_.find(mean_of(item.key()))) continue;
        optimizers.set_state(item.value(), {description_.value("optimizer_step", std::int64_t{0}),
                                            read_tensor(require(arrays_, mean_of(item.key()), path_), path_),
                                            squares ? read_tensor(*squares, path_) : at::Tensor()});
    }
}

void Checkpoint::load_raw_weights(torch::nn::Module& model) const
{
    const torch::NoGradGuard no_grad;
    for (const auto& item : model.named_parameters()) {
        if (arrays_.find(raw_of(item.key())))
            at::Tensor(item.value()).copy_(value_for(arrays_, raw_of(item.key()), item.value().sizes(), path_));
    }
}

void Checkpoint::load_raw_weights(const torch::nn::Module& model, const FullyShardedModule& sharded) const
{
    const torch::NoGradGuard no_grad;
    const auto parameters = model.named_parameters();
    for (const auto& [name, shard] : sharded.named_shards()) {
        if (arrays_.find(raw_of(name)))
            at::Tensor(local_of(shard))
                .copy_(part_of(value_for(arrays_, raw_of(name), sharded.whole_shape(parameters[name]), path_), shard));
    }
}

void Checkpoint::load_weights(torch::nn::Module& model, const FullyShardedModule& sharded) const
{
    std::map<std::string, at::Tensor> shards;
    for (const auto& [name, shard] : sharded.named_shards()) shards.emplace(name, shard);
    for_each_value(arrays_, path_, model, &sharded,
                   [&](const std::string& name, at::Tensor place, const at::Tensor& value) {
                       const auto found = shards.find(name);
                       if (found == shards.end())
                           place.copy_(value);  // a buffer, whole on every rank
                       else
                           at::Tensor(local_of(found->second)).copy_(part_of(value, found->second));
                   });
}

void Checkpoint::load_optimizer(const FullyShardedModule& sharded, Optimizers& optimizers) const
{
    const auto names = sharded.local_parameter_names();
    for (std::size_t i = 0; i < names.size(); ++i) {
        if (!arrays_.find(mean_of(names[i]))) continue;
        const auto& part = sharded.local_parameters()[i];
        const auto shard = sharded.as_shard(i, part);
        const auto* squares = arrays_.find(squares_of(names[i]));
        optimizers.set_state(part, {description_.value("optimizer_step", std::int64_t{0}),
                                    part_of(read_tensor(require(arrays_, mean_of(names[i]), path_), path_), shard),
                                    squares ? part_of(read_tensor(*squares, path_), shard) : at::Tensor()});
    }
}

std::vector<std::string> load_weights(const std::filesystem::path& path, torch::nn::Module& model,
                                      const std::string& class_name)
{
    const auto checkpoint = read_checkpoint(path);
    const auto& arrays = checkpoint.weights.arrays;
    if (!checkpoint.architecture.empty() && checkpoint.architecture != class_name)
        throw InvalidInput(path.string() + " holds a " + checkpoint.architecture + ", the model is a " + class_name +
                           ". Take weights of the same model.");
    constexpr const char* of_optimizer = "optimizer_state_dict";
    if (checkpoint.others.find(of_optimizer) != std::string::npos &&
        std::ranges::all_of(arrays, [&](const auto& array) { return array.name.starts_with(of_optimizer); }))
        throw InvalidInput(path.string() + " holds the state of an optimizer and no weights. PhysicsNeMo writes those "
                                           "to the .mdlus beside it; take that.");
    copy_values(checkpoint.weights, path, model);
    return checkpoint.notes;
}

void load_weights(const NamedArrays& arrays, const std::filesystem::path& path, torch::nn::Module& model)
{
    copy_values(arrays, path, model);
}

}  // namespace meshard
