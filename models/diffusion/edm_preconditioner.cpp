// SPDX-License-Identifier: Apache-2.0
#include "models/diffusion/edm_preconditioner.h"

#include "models/layers/option_checks.h"
#include "partition/error.h"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace meshard {
namespace {

constexpr const char* kPreconditioner = "EDMPreconditioner";

/// The arguments of a nested model. @throws InvalidInput if there is none, or one of another class
const nlohmann::json& nested_arguments(const nlohmann::json& arguments, const char* class_name,
                                       const std::string& where)
{
    const auto found = arguments.find("model");
    if (found == arguments.end() || !found->is_object() || !found->contains("__args__"))
        throw InvalidInput("{}: {} has no model of the class {}.", kPreconditioner, where, class_name);
    if (const auto name = found->value("__name__", std::string()); name != class_name)
        throw InvalidInput("{}: {} has a model of the class '{}'; expected {}.", kPreconditioner, where, name,
                           class_name);
    return (*found)["__args__"];
}

}  // namespace

EdmPreconditionerImpl::EdmPreconditionerImpl(DitOptions options, const std::vector<double>& sigma_data)
{
    const OptionChecks checks(kPreconditioner);
    if (sigma_data.empty()) checks.refuse("sigma_data must be one number or one for each channel.");
    for (const auto value : sigma_data) {
        if (!(value > 0)) checks.refuse("sigma_data must be positive, and is {}.", value);
    }
    const auto values = torch::tensor(sigma_data, torch::kFloat);
    sigma_data_ = register_buffer("sigma_data", sigma_data.size() == 1 ? values.squeeze(0) : values);
    const auto wrapper = register_module("model", std::make_shared<torch::nn::Module>());
    dit_ = wrapper->register_module("model", Dit(std::move(options)));
    if (sigma_data.size() > 1 && std::ssize(sigma_data) != dit_->options().num_outputs()) {
        checks.refuse("sigma_data has {} numbers for {} channels.", sigma_data.size(), dit_->options().num_outputs());
    }
}

torch::Tensor EdmPreconditionerImpl::sigma_data(const torch::Tensor& like) const
{
    const auto values = sigma_data_.to(like.scalar_type());
    return values.dim() == 0 ? values.view({1, 1, 1, 1}) : values.view({1, -1, 1, 1});
}

torch::Tensor EdmPreconditionerImpl::forward(const torch::Tensor& noisy, const torch::Tensor& sigma,
                                             const DenoiserCondition& condition)
{
    const auto& options = dit_->options();
    const auto joined = condition.image.defined() && condition.image.dim() == 4 ? condition.image.size(1) : 0;
    if (noisy.dim() != 4 || noisy.size(1) != options.num_outputs() || noisy.size(1) + joined != options.in_channels) {
        OptionChecks(kPreconditioner)
            .refuse("the noisy image must have {} channels and the condition image {}; they have the shapes {} and {}.",
                    options.num_outputs(), options.in_channels - options.num_outputs(), c10::str(noisy.sizes()),
                    condition.image.defined() ? c10::str(condition.image.sizes()) : "[]");
    }
    if (sigma.dim() != 1 || sigma.size(0) != noisy.size(0))
        OptionChecks(kPreconditioner).refuse("sigma must be one number for each image.");
    const auto level = sigma.to(noisy.scalar_type());
    const auto s = level.view({-1, 1, 1, 1}), data = sigma_data(noisy);
    const auto total = s.square() + data.square();
    const auto c_skip = data.square() / total, c_out = s * data / total.sqrt(), c_in = total.rsqrt();

    auto input = noisy * c_in;
    if (condition.image.defined()) input = torch::cat({input, condition.image.to(noisy.scalar_type())}, 1);
    const auto vector = condition.vector.defined() ? condition.vector.to(noisy.scalar_type()) : condition.vector;
    return noisy * c_skip + c_out * dit_->forward(input, level.log() / 4, vector);
}

EdmPreconditioner make_edm_preconditioner(const nlohmann::json& arguments)
{
    std::vector<double> sigma_data{0.5};
    for (const auto& [name, value] : arguments.items()) {
        if (name == "model") continue;
        if (name != "sigma_data")
            throw InvalidInput("{}: there is no argument '{}'; it has model and sigma_data.", kPreconditioner, name);
        const bool is_list =
            value.is_array() && std::ranges::all_of(value, [](const auto& entry) { return entry.is_number(); });
        if (!value.is_number() && !is_list)
            throw InvalidInput("{}: sigma_data cannot be {}; expected a number or numbers.", kPreconditioner,
                               value.dump());
        sigma_data = is_list ? value.get<std::vector<double>>() : std::vector<double>{value.get<double>()};
    }
    const auto& wrapper = nested_arguments(arguments, "ConcatConditionWrapper", "it");
    return EdmPreconditioner(dit_options(nested_arguments(wrapper, "DiT", "its ConcatConditionWrapper")), sigma_data);
}

}  // namespace meshard
