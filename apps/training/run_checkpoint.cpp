// SPDX-License-Identifier: Apache-2.0
#include "apps/training/run_checkpoint.h"

#include "apps/training/tensor_file.h"
#include "io/bytes/atomic_file.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"

#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <memory>
#include <sstream>

namespace meshard {
namespace {

constexpr const char* kMetadataKey = "meshard";

/// In single precision, as models are trained.
at::Tensor read_tensor(const NamedArray& array, const std::filesystem::path& path)
{
    if (array.type != ArrayType::F32 && array.type != ArrayType::F64) {
        throw IoError(path.string() + ": '" + array.name + "' is " + std::string(to_string(array.type)) + "; expected F32 or F64.");
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
at::Tensor value_for(const NamedArrays& arrays, const std::string& name, const at::Tensor& place, const std::filesystem::path& path)
{
    auto value = read_tensor(require(arrays, name, path), path);
    if (value.sizes() != place.sizes()) {
        std::ostringstream message;
        message << path.string() << ": '" << name << "' is " << value.sizes() << ", the model's is " << place.sizes() << ".";
        throw IoError(message.str());
    }
    return value;
}

/// Hands each parameter's and buffer's value to `copy`, by name.
template <class Copy>
void for_each_value(const NamedArrays& arrays, const std::filesystem::path& path, const torch::nn::Module& model, Copy&& copy)
{
    torch::NoGradGuard no_grad;
    const auto parameters = model.named_parameters();
    const auto buffers = model.named_buffers();
    for (const auto& item : parameters) copy(item.key(), item.value(), value_for(arrays, item.key(), item.value(), path));
    for (const auto& item : buffers) copy(item.key(), item.value(), value_for(arrays, item.key(), item.value(), path));
    for (const auto& array : arrays.arrays) {
        const bool is_other = array.name.starts_with("norm.") || array.name.starts_with("optimizer.");
        if (!is_other && !parameters.contains(array.name) && !buffers.contains(array.name)) {
            throw IoError(path.string() + " has '" + array.name + "', which the model has not; it belongs to another model.");
        }
    }
}

void copy_values(const NamedArrays& arrays, const std::filesystem::path& path, const torch::nn::Module& model)
{
    for_each_value(arrays, path, model, [](const std::string&, at::Tensor place, const at::Tensor& value) { place.copy_(value); });
}

std::string mean_of(const std::string& parameter)
{
    return "optimizer.exp_avg." + parameter;
}
std::string squares_of(const std::string& parameter)
{
    return "optimizer.exp_avg_sq." + parameter;
}

const torch::optim::AdamWParamState* state_of(const torch::optim::AdamW& optimizer, const at::Tensor& parameter)
{
    const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
    return found == optimizer.state().end() ? nullptr : &static_cast<const torch::optim::AdamWParamState&>(*found->second);
}

void set_state(torch::optim::AdamW& optimizer, const at::Tensor& parameter, std::int64_t step, const at::Tensor& mean, const at::Tensor& squares)
{
    auto state = std::make_unique<torch::optim::AdamWParamState>();
    state->step(step);
    state->exp_avg(mean.to(parameter.device()));
    state->exp_avg_sq(squares.to(parameter.device()));
    optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
}

/// This rank's values of a whole tensor, flat, where the part lies.
at::Tensor part_of(const at::Tensor& whole, const at::Tensor& shard)
{
    const auto& spec = *spec_of(shard);
    for (std::size_t axis = 0; axis < spec.axes.size(); ++axis) {
        if (!spec.axes[axis].is_shard()) continue;
        const auto me = spec.device_mesh->coordinate(static_cast<std::int64_t>(axis));
        return whole.reshape({-1}).narrow(0, spec.axes[axis].offset(me), (*spec.axes[axis].extents)[me]).clone();
    }
    return whole.reshape({-1}).clone();
}

}  // namespace

TrainedValues trained_values(const torch::nn::Module& model, const torch::optim::AdamW& optimizer)
{
    TrainedValues values;
    for (const auto& item : model.named_parameters()) values.tensors.emplace_back(item.key(), item.value());
    for (const auto& item : model.named_buffers()) values.tensors.emplace_back(item.key(), item.value());
    for (const auto& item : model.named_parameters()) {
        const auto* state = state_of(optimizer, item.value());
        if (!state) continue;
        values.tensors.emplace_back(mean_of(item.key()), state->exp_avg());
        values.tensors.emplace_back(squares_of(item.key()), state->exp_avg_sq());
        values.optimizer_step = state->step();
    }
    return values;
}

TrainedValues trained_values(const torch::nn::Module& model, const FullyShardedModule& sharded, const torch::optim::AdamW& optimizer)
{
    torch::NoGradGuard no_grad;
    TrainedValues values;
    const bool is_first = sharded.group().rank() == 0;
    const auto parameters = model.named_parameters();
    const auto keep = [&](const std::string& name, const std::string& parameter, const at::Tensor& shard) {
        const auto whole = full_tensor(shard);
        if (is_first) values.tensors.emplace_back(name, whole.view(parameters[parameter].sizes()));
    };
    for (const auto& [name, shard] : sharded.named_shards()) keep(name, name, shard);
    for (const auto& item : model.named_buffers()) {
        if (is_first) values.tensors.emplace_back(item.key(), item.value());
    }
    const auto names = sharded.local_parameter_names();
    const auto& parts = sharded.local_parameters();
    // Steps that each parameter has done; what a rank holds nothing of says nothing.
    std::vector<std::int64_t> steps;
    for (const auto& part : parts) {
        const auto* state = part.numel() > 0 ? state_of(optimizer, part) : nullptr;
        steps.push_back(state ? state->step() : 0);
    }
    const auto of_ranks = sharded.group().all_gather_integers(steps);
    for (std::size_t i = 0; i < names.size(); ++i) {
        std::int64_t step = 0;
        for (const auto& of_rank : of_ranks) step = std::max(step, of_rank[i]);
        if (step == 0) continue;
        const auto* state = steps[i] > 0 ? state_of(optimizer, parts[i]) : nullptr;
        keep(mean_of(names[i]), names[i], sharded.as_shard(i, state ? state->exp_avg() : torch::zeros_like(parts[i])));
        keep(squares_of(names[i]), names[i], sharded.as_shard(i, state ? state->exp_avg_sq() : torch::zeros_like(parts[i])));
        values.optimizer_step = step;
    }
    return values;
}

void save_checkpoint(const std::filesystem::path& path, const torch::nn::Module& model, const Normalizer& normalizer, const torch::optim::AdamW& optimizer,
                     const nlohmann::json& description)
{
    save_checkpoint(path, trained_values(model, optimizer), normalizer, description);
}

void save_checkpoint(const std::filesystem::path& path, const TrainedValues& values, const Normalizer& normalizer, const nlohmann::json& description)
{
    NamedArrays content;
    for (const auto& [name, tensor] : values.tensors) content.arrays.push_back(float_array(name, tensor));
    content.arrays.push_back(float_array("norm.mean", normalizer.mean));
    content.arrays.push_back(float_array("norm.std", normalizer.std));
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
    if (found == arrays_.metadata.end()) throw IoError(path.string() + " is no checkpoint of meshard: its metadata has no '" + kMetadataKey + "'.");
    description_ = nlohmann::json::parse(found->second, nullptr, false);
    if (description_.is_discarded()) throw IoError(path.string() + ": the metadata is damaged.");
}

Normalizer Checkpoint::normalizer() const
{
    return {read_tensor(require(arrays_, "norm.mean", path_), path_), read_tensor(require(arrays_, "norm.std", path_), path_)};
}

void Checkpoint::load_weights(torch::nn::Module& model) const
{
    copy_values(arrays_, path_, model);
}

void Checkpoint::load_optimizer(const torch::nn::Module& model, torch::optim::AdamW& optimizer) const
{
    for (const auto& item : model.named_parameters()) {
        if (!arrays_.find(mean_of(item.key()))) continue;
        set_state(optimizer, item.value(), description_.value("optimizer_step", std::int64_t{0}),
                  read_tensor(require(arrays_, mean_of(item.key()), path_), path_), read_tensor(require(arrays_, squares_of(item.key()), path_), path_));
    }
}

void Checkpoint::load_weights(torch::nn::Module& model, const FullyShardedModule& sharded) const
{
    std::map<std::string, at::Tensor> shards;
    for (const auto& [name, shard] : sharded.named_shards()) shards.emplace(name, shard);
    for_each_value(arrays_, path_, model, [&](const std::string& name, at::Tensor place, const at::Tensor& value) {
        const auto found = shards.find(name);
        if (found == shards.end())
            place.copy_(value);  // a buffer, whole on every rank
        else
            at::Tensor(local_of(found->second)).copy_(part_of(value, found->second));
    });
}

void Checkpoint::load_optimizer(const FullyShardedModule& sharded, torch::optim::AdamW& optimizer) const
{
    const auto names = sharded.local_parameter_names();
    for (std::size_t i = 0; i < names.size(); ++i) {
        if (!arrays_.find(mean_of(names[i]))) continue;
        const auto& part = sharded.local_parameters()[i];
        const auto shard = sharded.as_shard(i, part);
        set_state(optimizer, part, description_.value("optimizer_step", std::int64_t{0}),
                  part_of(read_tensor(require(arrays_, mean_of(names[i]), path_), path_), shard),
                  part_of(read_tensor(require(arrays_, squares_of(names[i]), path_), path_), shard));
    }
}

void load_weights(const std::filesystem::path& path, torch::nn::Module& model)
{
    copy_values(read_safetensors(path), path, model);
}

}  // namespace meshard
