// SPDX-License-Identifier: Apache-2.0
#include "apps/training/run_checkpoint.h"

#include "apps/training/tensor_file.h"
#include "io/bytes/atomic_file.h"
#include "partition/error.h"

#include <torch/torch.h>

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

void copy_values(const NamedArrays& arrays, const std::filesystem::path& path, torch::nn::Module& model)
{
    torch::NoGradGuard no_grad;
    const auto parameters = model.named_parameters();
    const auto buffers = model.named_buffers();
    const auto copy = [&](const std::string& name, at::Tensor place) {
        const auto value = read_tensor(require(arrays, name, path), path);
        if (value.sizes() != place.sizes()) {
            std::ostringstream message;
            message << path.string() << ": '" << name << "' is " << value.sizes() << ", the model's is " << place.sizes() << ".";
            throw IoError(message.str());
        }
        place.copy_(value);
    };
    for (const auto& item : parameters) copy(item.key(), item.value());
    for (const auto& item : buffers) copy(item.key(), item.value());
    for (const auto& array : arrays.arrays) {
        const bool is_other = array.name.starts_with("norm.") || array.name.starts_with("optimizer.");
        if (!is_other && !parameters.contains(array.name) && !buffers.contains(array.name)) {
            throw IoError(path.string() + " has '" + array.name + "', which the model has not; it belongs to another model.");
        }
    }
}

}  // namespace

void save_checkpoint(const std::filesystem::path& path, const torch::nn::Module& model, const Normalizer& normalizer, const torch::optim::AdamW& optimizer,
                     const nlohmann::json& description)
{
    NamedArrays content;
    for (const auto& item : model.named_parameters()) content.arrays.push_back(float_array(item.key(), item.value()));
    for (const auto& item : model.named_buffers()) content.arrays.push_back(float_array(item.key(), item.value()));
    content.arrays.push_back(float_array("norm.mean", normalizer.mean));
    content.arrays.push_back(float_array("norm.std", normalizer.std));

    auto complete = description;
    for (const auto& item : model.named_parameters()) {
        const auto found = optimizer.state().find(item.value().unsafeGetTensorImpl());
        if (found == optimizer.state().end()) continue;
        const auto& state = static_cast<const torch::optim::AdamWParamState&>(*found->second);
        content.arrays.push_back(float_array("optimizer.exp_avg." + item.key(), state.exp_avg()));
        content.arrays.push_back(float_array("optimizer.exp_avg_sq." + item.key(), state.exp_avg_sq()));
        complete["optimizer_step"] = state.step();
    }
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
        if (!arrays_.find("optimizer.exp_avg." + item.key())) continue;
        auto state = std::make_unique<torch::optim::AdamWParamState>();
        state->step(description_.value("optimizer_step", std::int64_t{0}));
        state->exp_avg(read_tensor(require(arrays_, "optimizer.exp_avg." + item.key(), path_), path_));
        state->exp_avg_sq(read_tensor(require(arrays_, "optimizer.exp_avg_sq." + item.key(), path_), path_));
        optimizer.state()[item.value().unsafeGetTensorImpl()] = std::move(state);
    }
}

void load_weights(const std::filesystem::path& path, torch::nn::Module& model)
{
    copy_values(read_safetensors(path), path, model);
}

}  // namespace meshard
