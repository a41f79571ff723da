// SPDX-License-Identifier: Apache-2.0
#include "models/registry/last_features.h"

#include "sharding/tensor/shard_tensor.h"

#include <torch/nn/modules/linear.h>
#include <torch/types.h>

namespace meshard {
namespace {

/// A linear layer that passes on what it is given, as long as this lives.
class PassedOn {
public:
    /// @param num_other   outputs that are cut off behind the features
    PassedOn(torch::nn::LinearImpl& layer, std::int64_t num_other)
        : layer_(layer), weight_(layer.weight.data()), bias_(layer.bias.data())
    {
        const auto num_outputs = weight_.size(1) + num_other;
        layer_.weight.set_data(torch::eye(num_outputs, weight_.size(1), weight_.options()));
        layer_.bias.set_data(torch::zeros({num_outputs}, bias_.options()));
    }
    ~PassedOn()
    {
        layer_.weight.set_data(weight_);
        layer_.bias.set_data(bias_);
    }
    PassedOn(const PassedOn&) = delete;
    PassedOn& operator=(const PassedOn&) = delete;

private:
    torch::nn::LinearImpl& layer_;
    at::Tensor weight_, bias_;
};

}  // namespace

at::Tensor mean_last_features(const Model& model, const PointInputs& inputs, std::int64_t num_fields)
{
    const auto* kind = find_model(model.class_name).of_points();
    if (!kind || !kind->last_layer) return {};
    const auto found = model.module->named_modules().find(kind->last_layer(model.arguments));
    auto* layer = found ? (*found)->as<torch::nn::Linear>() : nullptr;
    if (!layer) return {};
    const torch::NoGradGuard no_grad;
    // A head takes further outputs behind those of the fields.
    const PassedOn passed_on(*layer, layer->weight.size(0) - num_fields);
    const auto features = model.forward(inputs);  // (1, N, features)
    const auto mean = features.to(torch::kDouble).sum(1) / static_cast<double>(features.size(1));
    return (is_sharded(mean) ? full_tensor(mean) : mean).squeeze(0).cpu();
}

}  // namespace meshard
