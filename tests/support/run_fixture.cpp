// SPDX-License-Identifier: Apache-2.0
#include "tests/support/run_fixture.h"

#include <algorithm>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "models/transolver.h"

namespace meshard::test {
namespace {

std::string kind_of(const nlohmann::json& description)
{
    if (description.contains("operation")) return description["operation"].get<std::string>();
    const auto name = description.value("class", std::string("a case without a class"));
    return name.substr(name.rfind('.') + 1);
}

FixtureModel make_model(const nlohmann::json& description)
{
    const auto& constructor = description["constructor"];
    if (kind_of(description) == "Transolver") {
        Transolver model(transolver_options(constructor));
        return {model.ptr(), [model](const NamedTensors& inputs) mutable {
                    const auto time = inputs.count("time") ? inputs.at("time") : at::Tensor();
                    return model->forward(inputs.at("fx"), inputs.at("embedding"), time);
                }};
    }
    PhysicsAttention attention(constructor["dim"].get<std::int64_t>(), constructor["heads"].get<std::int64_t>(),
                               constructor["slice_num"].get<std::int64_t>(), 0.0);
    return {attention.ptr(), [attention](const NamedTensors& inputs) mutable { return attention->forward(inputs.at("x")); }};
}

}  // namespace

std::string reason_to_skip(const nlohmann::json& description)
{
    const auto kind = kind_of(description);
    const auto constructor = description.value("constructor", nlohmann::json::object());
    if (kind != "Transolver" && kind != "PhysicsAttentionIrregularMesh") return kind + ": not implemented, or not a model";
    if (constructor.value("plus", false)) return kind + " with plus (Transolver++) is not implemented";
    if (constructor.value("unified_pos", false)) return kind + " with unified_pos is not implemented";
    if (constructor.contains("structured_shape") && !constructor["structured_shape"].is_null()) {
        return kind + " on structured grids is not implemented";
    }
    if (kind != "Transolver" && constructor.value("dim", 0) != constructor.value("heads", 0) * constructor.value("dim_head", 0)) {
        return kind + " with dim other than heads * dim_head is not implemented";
    }
    return {};
}

FixtureModel load_fixture_model(const nlohmann::json& description, const NamedTensors& tensors, at::ScalarType type)
{
    auto model = make_model(description);
    NamedTensors places;
    for (const auto& item : model.module->named_parameters()) places["param." + item.key()] = item.value();
    for (const auto& item : model.module->named_buffers()) places["param." + item.key()] = item.value();
    torch::NoGradGuard no_grad;
    for (auto& [name, place] : places) {
        const auto found = tensors.find(name);
        EXPECT_TRUE(found != tensors.end()) << name << " is not in the fixture";
        if (found == tensors.end()) continue;
        EXPECT_EQ(place.sizes(), found->second.sizes()) << name;
        place.copy_(found->second);
    }
    for (const auto& [name, tensor] : tensors) {
        const bool is_known = name.rfind("param.", 0) != 0 || places.count(name) == 1;
        EXPECT_TRUE(is_known) << name << " is not in the model";
    }
    model.module->to(type);
    model.module->eval();
    return model;
}

FixtureResult run_fixture(const nlohmann::json& description, const NamedTensors& tensors, at::ScalarType type)
{
    const auto model = load_fixture_model(description, tensors, type);
    NamedTensors inputs;
    for (const auto& [name, tensor] : tensors) {
        if (name.rfind("input.", 0) == 0) inputs[name.substr(6)] = tensor.to(type).requires_grad_();
    }

    FixtureResult result;
    const auto output = model.forward(inputs);
    (output * tensors.at("grad_output").to(type)).sum().backward();
    result.output = output.detach();
    for (const auto& item : model.module->named_parameters()) {
        ++result.num_parameters;
        if (item.value().grad().defined()) result.gradients["grad." + item.key()] = item.value().grad();
    }
    for (const auto& [name, tensor] : inputs) result.gradients["grad_input." + name] = tensor.grad();
    return result;
}

void expect_reference_values(const FixtureResult& result, const nlohmann::json& description, const NamedTensors& tensors)
{
    expect_near("output", result.output, tensors.at("output"), description["suggested_tolerance"].value("output_abs", 2e-6));
    // A case with results in double precision may keep its gradients in that precision only.
    const bool has_single = std::any_of(tensors.begin(), tensors.end(), [](const auto& item) { return item.first.rfind("grad.", 0) == 0; });
    const std::string prefix = has_single ? "grad." : "grad64.";
    double largest_gradient = 0;
    for (const auto& [name, tensor] : tensors) {
        if (name.rfind(prefix, 0) == 0) largest_gradient = std::max(largest_gradient, largest(tensor));
    }
    std::size_t num_gradients = 0;
    for (const auto& [name, expected] : tensors) {
        if (name.rfind(prefix, 0) == 0) {
            ++num_gradients;
            const auto own_name = "grad." + name.substr(prefix.size());
            ASSERT_TRUE(result.gradients.count(own_name)) << name;
            expect_near(own_name, result.gradients.at(own_name), expected, 5e-5 * largest(expected) + 1e-6 * largest_gradient);
        } else if (name.rfind("grad_input.", 0) == 0) {
            ASSERT_TRUE(result.gradients.count(name)) << name;
            expect_near(name, result.gradients.at(name), expected, 5e-5 * largest(expected));
        }
    }
    const auto without = description.value("parameters_without_gradient", nlohmann::json::array()).size();
    EXPECT_EQ(num_gradients, result.num_parameters - without);
}

void expect_near(const std::string& what, const at::Tensor& value, const at::Tensor& expected, double tolerance)
{
    ASSERT_TRUE(value.defined()) << what;
    ASSERT_EQ(value.sizes(), expected.sizes()) << what;
    const auto difference = largest(value.to(at::kDouble) - expected.to(at::kDouble));
    EXPECT_LE(difference, tolerance) << what << ", whose largest value is " << largest(expected);
}

double largest(const at::Tensor& tensor)
{
    return tensor.numel() == 0 ? 0.0 : tensor.abs().max().item<double>();
}

}  // namespace meshard::test
