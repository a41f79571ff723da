// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/checkpoints/run_checkpoint.h"

#include "apps/learning/checkpoints/tensor_file.h"
#include "io/bytes/atomic_file.h"
#include "io/checkpoints/model_checkpoint.h"
#include "partition/error.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"

#include <algorithm>
#include <map>
#include <sstream>

namespace meshard {
namespace {

constexpr const char* kMetadataKey = checkpoint_key;
constexpr const char *kInputMean = "norm.input_mean", *kInputDeviation = "norm.input_std";

/// Reads an array in single precision, as models are trained.
at::Tensor read_tensor(const NamedArray& array)
{
    return to_tensor(array).to(torch::kFloat32);
}

NamedArray float_array(std::string name, const at::Tensor& tensor)
{
    return to_named_array(std::move(name), tensor.to(torch::kFloat32));
}

const NamedArray& require(const NamedArrays& arrays, const std::string& name, const std::filesystem::path& path)
{
    const auto* array = arrays.find(name);
    if (!array) throw IoError("{} has no '{}'; it belongs to another model.", path.string(), name);
    return *array;
}

/// The value of a parameter or buffer, of the shape that the model's has.
at::Tensor value_for(const NamedArrays& arrays, const std::string& name, at::IntArrayRef shape,
                     const std::filesystem::path& path)
{
    auto value = read_tensor(require(arrays, name, path));
    if (value.sizes() != shape) {
        std::ostringstream message;
        message << path.string() << ": '" << name << "' is " << value.sizes() << ", the model's is " << shape << ".";
        throw IoError(message.str());
    }
    return value;
}

/// Returns this rank's values of a whole tensor, as the part lies.
at::Tensor part_of(const at::Tensor& whole, const at::Tensor& shard)
{
    return own_part(whole.reshape(shard.sizes()), *spec_of(shard)).clone(at::MemoryFormat::Contiguous);
}

/// Copies values of a file into the parameters of a model, or into this rank's parts of them.
class Places {
public:
    /// @param sharded   null where every rank has whole parameters
    Places(const NamedArrays& arrays, const std::filesystem::path& path, const FullyShardedModule* sharded)
        : arrays_(arrays), path_(path), sharded_(sharded)
    {
        if (!sharded) return;
        for (const auto& [name, shard] : sharded->named_shards()) shards_.emplace(name, shard);
    }

    /// @param array   name of the value in the file
    void fill(const std::string& name, at::Tensor parameter, const std::string& array) const
    {
        const auto shard = shards_.find(name);
        const auto value = value_for(
            arrays_, array, shard == shards_.end() ? parameter.sizes() : sharded_->whole_shape(parameter), path_);
        if (shard == shards_.end())
            parameter.copy_(value);
        else
            at::Tensor(local_of(shard->second)).copy_(part_of(value, shard->second));
    }

private:
    const NamedArrays& arrays_;
    const std::filesystem::path& path_;
    const FullyShardedModule* sharded_;
    std::map<std::string, at::Tensor> shards_;
};

void copy_values(const NamedArrays& arrays, const std::filesystem::path& path, const torch::nn::Module& model,
                 const FullyShardedModule* sharded = nullptr)
{
    const torch::NoGradGuard no_grad;
    const Places places(arrays, path, sharded);
    const auto parameters = model.named_parameters();
    const auto buffers = model.named_buffers();
    for (const auto& item : parameters) places.fill(item.key(), item.value(), item.key());
    for (const auto& item : buffers) places.fill(item.key(), item.value(), item.key());
    for (const auto& array : arrays.arrays) {
        const bool is_other = array.name.starts_with("norm.") || array.name.starts_with("optimizer.");
        const auto name = first_name(array.name);
        if (!is_other && !parameters.contains(name) && !buffers.contains(name))
            throw IoError("{} has '{}', which the model has not; it belongs to another model.", path.string(),
                          array.name);
    }
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

}  // namespace

TrainedValues trained_values(const torch::nn::Module& model, const Optimizers& optimizers, const WeightAverage* average,
                             const FullyShardedModule* sharded)
{
    const torch::NoGradGuard no_grad;
    TrainedValues values;
    const auto parameters = model.named_parameters();
    const bool is_first = !sharded || sharded->group().rank() == 0;
    // `value` is a whole tensor, or this rank's shard of one.
    const auto keep = [&](const std::string& name, const std::string& parameter, const at::Tensor& value) {
        const auto whole = sharded ? full_tensor(value) : value;
        if (is_first)
            values.tensors.emplace_back(name,
                                        sharded ? whole.view(sharded->whole_shape(parameters[parameter])) : whole);
    };
    std::vector<std::string> names;  // of what the optimiser takes
    std::vector<at::Tensor> parts;
    if (sharded) {
        names = sharded->local_parameter_names();
        parts = sharded->local_parameters();
    } else {
        for (const auto& item : parameters) {
            names.push_back(item.key());
            parts.push_back(item.value());
        }
    }
    const auto shard_of = [&](std::size_t i, const at::Tensor& part) {
        return sharded ? sharded->as_shard(i, part) : part;
    };
    std::map<std::string, std::size_t> trained;
    for (std::size_t i = 0; i < names.size(); ++i) trained[names[i]] = i;
    const auto keep_weights = [&](const std::string& name, const at::Tensor& value) {
        const auto found = trained.find(name);
        const auto* mean = average && found != trained.end() ? average->mean_of(parts[found->second]) : nullptr;
        keep(name, name, mean ? shard_of(found->second, *mean) : value);
        if (mean) keep(raw_of(name), name, value);
    };
    if (sharded) {
        for (const auto& [name, shard] : sharded->named_shards()) keep_weights(name, shard);
    } else {
        for (const auto& item : parameters) keep_weights(item.key(), item.value());
    }
    for (const auto& item : model.named_buffers()) {
        if (is_first) values.tensors.emplace_back(item.key(), item.value());
    }
    // A rank that holds nothing of a parameter does not know how many steps it has done.
    std::vector<std::int64_t> own_steps;
    for (const auto& part : parts) {
        const auto state = part.numel() > 0 ? optimizers.state(part) : std::nullopt;
        own_steps.push_back(state ? state->step : 0);
    }
    auto steps = own_steps;
    if (sharded) {
        for (const auto& of_rank : sharded->group().all_gather_integers(own_steps))
            std::ranges::transform(steps, of_rank, steps.begin(), [](auto a, auto b) { return std::max(a, b); });
    }
    for (std::size_t i = 0; i < names.size(); ++i) {
        if (steps[i] == 0) continue;
        const auto state = own_steps[i] > 0 ? optimizers.state(parts[i]) : std::nullopt;
        keep(mean_of(names[i]), names[i], shard_of(i, state ? state->mean : torch::zeros_like(parts[i])));
        if (optimizers.keeps_squares(parts[i]))
            keep(squares_of(names[i]), names[i], shard_of(i, state ? state->squares : torch::zeros_like(parts[i])));
        values.optimizer_step = steps[i];
    }
    return values;
}

void save_checkpoint(const std::filesystem::path& path, const TrainedValues& values, const Normalizer& normalizer,
                     const RunDescription& description, const Normalizer* of_inputs)
{
    NamedArrays content;
    for (const auto& [name, tensor] : values.tensors) content.arrays.push_back(float_array(name, tensor));
    content.arrays.push_back(float_array("norm.mean", normalizer.mean));
    content.arrays.push_back(float_array("norm.std", normalizer.std));
    if (of_inputs) {
        content.arrays.push_back(float_array(kInputMean, of_inputs->mean));
        content.arrays.push_back(float_array(kInputDeviation, of_inputs->std));
    }
    auto json = to_json(description);
    if (values.optimizer_step) json["optimizer_step"] = *values.optimizer_step;
    content.metadata[kMetadataKey] = json.dump();
    content.metadata["format"] = "pt";
    write_safetensors(path, content);
    auto beside = path;
    write_file_atomically(beside.replace_extension(".json"), json.dump(2) + "\n");
}

Checkpoint::Checkpoint(const std::filesystem::path& path) : path_(path), arrays_(read_safetensors(path))
{
    const auto found = arrays_.metadata.find(kMetadataKey);
    if (found == arrays_.metadata.end())
        throw IoError("{} is no checkpoint of meshard: its metadata has no '{}'.", path.string(), kMetadataKey);
    const auto json = nlohmann::json::parse(found->second, nullptr, false);
    if (json.is_discarded()) throw IoError("{}: the metadata is damaged.", path.string());
    description_ = run_description(json, path);
}

Normalizer Checkpoint::normalizer() const
{
    return {read_tensor(require(arrays_, "norm.mean", path_)), read_tensor(require(arrays_, "norm.std", path_))};
}

Normalizer Checkpoint::input_normalizer() const
{
    return {read_tensor(require(arrays_, kInputMean, path_)), read_tensor(require(arrays_, kInputDeviation, path_))};
}

at::Tensor Checkpoint::training_mean() const
{
    return description_.training_mean ? torch::tensor(*description_.training_mean) : normalizer().mean;
}

void Checkpoint::load_weights(torch::nn::Module& model, const FullyShardedModule* sharded) const
{
    copy_values(arrays_, path_, model, sharded);
}

void Checkpoint::load_optimizer(const torch::nn::Module& model, Optimizers& optimizers,
                                const FullyShardedModule* sharded) const
{
    const auto load = [&](const std::string& name, const at::Tensor& parameter, const at::Tensor& shard) {
        const auto *mean = arrays_.find(mean_of(name)), *squares = arrays_.find(squares_of(name));
        if (!mean) return;
        const auto own = [&](const NamedArray& array) {
            const auto whole = read_tensor(array);
            return shard.defined() ? part_of(whole, shard) : whole;
        };
        optimizers.set_state(
            parameter, {description_.optimizer_step.value_or(0), own(*mean), squares ? own(*squares) : at::Tensor()});
    };
    if (!sharded) {
        for (const auto& item : model.named_parameters()) load(item.key(), item.value(), {});
        return;
    }
    const auto names = sharded->local_parameter_names();
    const auto& parts = sharded->local_parameters();
    for (std::size_t i = 0; i < names.size(); ++i) load(names[i], parts[i], sharded->as_shard(i, parts[i]));
}

void Checkpoint::load_raw_weights(const torch::nn::Module& model, const FullyShardedModule* sharded) const
{
    const torch::NoGradGuard no_grad;
    const Places places(arrays_, path_, sharded);
    for (const auto& item : model.named_parameters()) {
        if (arrays_.find(raw_of(item.key()))) places.fill(item.key(), item.value(), raw_of(item.key()));
    }
}

std::vector<std::string> load_weights(const std::filesystem::path& path, torch::nn::Module& model,
                                      const std::string& class_name)
{
    const auto checkpoint = read_checkpoint(path);
    const auto& arrays = checkpoint.weights.arrays;
    if (!checkpoint.architecture.empty() && checkpoint.architecture != class_name)
        throw InvalidInput("{} holds a {}, the model is a {}. Take weights of the same model.", path.string(),
                           checkpoint.architecture, class_name);
    constexpr const char* of_optimizer = "optimizer_state_dict";
    if (checkpoint.others.find(of_optimizer) != std::string::npos &&
        std::ranges::all_of(arrays, [&](const auto& array) { return array.name.starts_with(of_optimizer); }))
        throw InvalidInput("{} holds the state of an optimizer and no weights. PhysicsNeMo writes those "
                           "to the .mdlus beside it; take that.",
                           path.string());
    copy_values(checkpoint.weights, path, model);
    return checkpoint.notes;
}

void load_weights(const NamedArrays& arrays, const std::filesystem::path& path, torch::nn::Module& model)
{
    copy_values(arrays, path, model);
}

}  // namespace meshard
