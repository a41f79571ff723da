// SPDX-License-Identifier: Apache-2.0
#include "models/registry/coefficient_head.h"

#include "sharding/tensor/shard_tensor.h"

#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

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
        const auto mean =
            features.to(hidden->weight.scalar_type()).sum(1) / static_cast<double>(features.size(1));  // (B, features)
        return out->forward(torch::gelu(hidden->forward(mean)));
    }

    torch::nn::Linear hidden, out;
};
TORCH_MODULE(CoefficientHead);

}  // namespace

std::function<FieldsAndCoefficients(const PointInputs&)> add_coefficient_head(Model& model, std::int64_t num_features,
                                                                              std::int64_t num_coefficients)
{
    CoefficientHead head(num_features, num_coefficients);
    add_part(model, "coefficients", head.ptr(), "the head's. Leave training.coefficient_weights out.");
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

std::vector<double> physical_coefficients(const at::Tensor& coefficients, const std::vector<double>& means,
                                          const std::vector<double>& deviations)
{
    const auto whole = (is_sharded(coefficients) ? full_tensor(coefficients) : coefficients).to(torch::kDouble).cpu();
    std::vector<double> values;
    for (std::int64_t k = 0; k < whole.size(1); ++k)
        values.push_back(whole[0][k].item<double>() * deviations[k] + means[k]);
    return values;
}

}  // namespace meshard
