// SPDX-License-Identifier: Apache-2.0
#include "models/registry/coefficient_head.h"

#include "partition/error.h"

#include <torch/torch.h>

namespace meshard {
namespace {

struct CoefficientHeadImpl : torch::nn::Module {
    CoefficientHeadImpl(std::int64_t num_features, std::int64_t num_coefficients)
        : hidden(register_module("hidden", torch::nn::Linear(num_features, num_features))),
          out(register_module("out", torch::nn::Linear(num_features, num_coefficients)))
    {
    }

    /// (B, N, features) to (B, coefficients)
    at::Tensor forward(const at::Tensor& features)
    {
        const auto mean = features.to(torch::kFloat).sum(1) / static_cast<double>(features.size(1));  // (B, features)
        return out->forward(torch::gelu(hidden->forward(mean)));
    }

    torch::nn::Linear hidden, out;
};
TORCH_MODULE(CoefficientHead);

}  // namespace

std::function<FieldsAndCoefficients(const PointInputs&)> add_coefficient_head(Model& model, std::int64_t num_features, std::int64_t num_coefficients)
{
    constexpr const char* name = "coefficients";
    if (model.module->named_children().contains(name)) {
        throw InvalidInput("the model " + model.class_name + " has a part '" + name +
                           "' of its own, which is the name of the head's. Leave training.coefficient_weights out.");
    }
    CoefficientHead head(num_features, num_coefficients);
    model.module->register_module(name, head);
    const auto whole = model.forward;
    model.forward = [whole, num_features](const PointInputs& inputs) {
        const auto rows = whole(inputs);
        return rows.narrow(-1, 0, rows.size(-1) - num_features);
    };
    return [whole, num_features, head](const PointInputs& inputs) mutable -> FieldsAndCoefficients {
        const auto rows = whole(inputs);
        const auto num_fields = rows.size(-1) - num_features;
        return {rows.narrow(-1, 0, num_fields), head->forward(rows.narrow(-1, num_fields, num_features))};
    };
}

}  // namespace meshard
