// SPDX-License-Identifier: Apache-2.0
#include "tests/support/run_fixture.h"

#include "models/diffusion/edm_preconditioner.h"
#include "models/geotransolver/gale.h"
#include "models/geotransolver/geotransolver.h"
#include "models/graph/mesh_graph_net.h"
#include "models/grids/figconv_unet.h"
#include "models/grids/fno.h"
#include "models/grids/unet_3d.h"
#include "models/transolver/flare.h"
#include "models/transolver/flare_attention.h"
#include "models/transolver/physics_attention.h"
#include "models/transolver/transolver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>

namespace meshard::test {
namespace {

at::Tensor optional(const NamedTensors& inputs, const std::string& name)
{
    const auto found = inputs.find(name);
    return found == inputs.end() ? at::Tensor() : found->second;
}

/// `name` alone, or `name.0`, `name.1`, ...
std::vector<at::Tensor> streams(const NamedTensors& inputs, const std::string& name)
{
    if (inputs.count(name)) return {inputs.at(name)};
    std::vector<at::Tensor> list;
    while (inputs.count(name + "." + std::to_string(list.size())))
        list.push_back(inputs.at(name + "." + std::to_string(list.size())));
    return list;
}

template <class Model>
FixtureModel transolver_like(Model model)
{
    return {model.ptr(),
            [model](const NamedTensors& inputs) mutable {
                return std::vector<at::Tensor>{
                    model->forward(inputs.at("fx"), optional(inputs, "embedding"), optional(inputs, "time"))};
            },
            [model](UniformNoise noise) mutable { model->set_noise(std::move(noise)); }};
}

template <class Layer>
FixtureModel layer_with_context(Layer layer)
{
    return {layer.ptr(),
            [layer](const NamedTensors& inputs) mutable {
                return std::vector<at::Tensor>{layer->forward(inputs.at("x"), optional(inputs, "context"))};
            },
            {}};
}

template <class Layer>
FixtureModel plain_layer(Layer layer)
{
    return {
        layer.ptr(),
        [layer](const NamedTensors& inputs) mutable { return std::vector<at::Tensor>{layer->forward(inputs.at("x"))}; },
        {}};
}

/// On one rank. The case lists its edges as pairs of source and target, in any order; those of a graph follow their
/// targets.
FixtureModel mesh_graph_net(const nlohmann::json& description)
{
    const auto edges = description["edges"].get<std::vector<std::array<std::int64_t, 2>>>();
    MeshGraphNet model(mesh_graph_net_options(description["constructor"]));
    return {model.ptr(),
            [model, edges](const NamedTensors& inputs) mutable {
                const auto& nodes = inputs.at("node_features");
                const auto ends =
                    torch::tensor(c10::ArrayRef<std::int64_t>(edges.data()->data(), 2 * edges.size()), torch::kLong)
                        .view({-1, 2});
                const auto [targets, order] = ends.select(1, 1).sort(true, 0, false);
                Neighbors neighbors;
                neighbors.offsets = torch::searchsorted(targets, torch::arange(nodes.size(0) + 1));
                neighbors.ids = neighbors.rows = ends.select(1, 0).index_select(0, order);
                neighbors.distances = torch::zeros_like(neighbors.rows, nodes.options());
                neighbors.num_points = nodes.size(0);
                const MeshGraph graph(MessageGraph(std::move(neighbors)), model->options());
                return std::vector<at::Tensor>{
                    model->forward(nodes, inputs.at("edge_features").index_select(0, order), graph)};
            },
            {}};
}

/// Whether fp32 numbers of the reference carry noise that the model does not have: then those in double precision are
/// compared with.
bool has_noisy_single_precision(const nlohmann::json& description)
{
    return description.contains("fp32_with_constant_gates_against_fp64");
}

/// Of gradients against the largest value of their tensor, as the case suggests: 5e-5 unless it says more.
double relative_tolerance(const nlohmann::json& description)
{
    const auto text = description["suggested_tolerance"].value("grad_input", std::string());
    const std::string before = "|difference| <= ";
    return text.starts_with(before) ? std::stod(text.substr(before.size())) : 5e-5;
}

FixtureModel dit(const nlohmann::json& constructor)
{
    Dit model(dit_options(constructor));
    return {model.ptr(),
            [model](const NamedTensors& inputs) mutable {
                return std::vector<at::Tensor>{model->forward(
                    inputs.at("x"), inputs.at("t"), optional(inputs, "condition"), optional(inputs, "invalid_mask"))};
            },
            {}};
}

FixtureModel edm_preconditioner(const nlohmann::json& constructor)
{
    EdmPreconditioner model(dit_options(constructor["dit"]),
                            std::vector<double>{constructor["sigma_data"].get<double>()});
    return {model.ptr(),
            [model](const NamedTensors& inputs) mutable {
                const DenoiserCondition condition{optional(inputs, "condition.cond_concat"),
                                                  optional(inputs, "condition.cond_vec")};
                return std::vector<at::Tensor>{model->forward(inputs.at("x"), inputs.at("t"), condition)};
            },
            {}};
}

FixtureModel make_model(const nlohmann::json& description)
{
    const auto& constructor = description["constructor"];
    const auto kind = kind_of(description);
    if (kind == "FIGConvUNet") {
        FigConvUNet model(figconv_unet_options(constructor));
        return {model.ptr(),
                [model](const NamedTensors& inputs) mutable {
                    const auto result = model->forward(inputs.at("vertices"), optional(inputs, "features"));
                    return result.scalar.defined() ? std::vector<at::Tensor>{result.points, result.scalar}
                                                   : std::vector<at::Tensor>{result.points};
                },
                {}};
    }
    if (kind == "FNO") return plain_layer(Fno(fno_options(constructor)));
    if (kind == "UNet") return plain_layer(UNet3d(unet_3d_options(constructor)));
    if (kind == "DiT") return dit(constructor);
    if (kind == "EDMPreconditioner") return edm_preconditioner(constructor);
    if (kind == "Transolver") return transolver_like(Transolver(transolver_options(constructor)));
    if (kind == "FLARE") return transolver_like(Flare(transolver_options(constructor)));
    if (kind == "MeshGraphNet") return mesh_graph_net(description);
    if (kind == "GeoTransolver") {
        GeoTransolver model(geotransolver_options(constructor));
        return {model.ptr(),
                [model](const NamedTensors& inputs) mutable {
                    return model->forward({.local_embedding = streams(inputs, "local_embedding"),
                                           .global_embedding = optional(inputs, "global_embedding"),
                                           .geometry = optional(inputs, "geometry"),
                                           .local_positions = streams(inputs, "local_positions")});
                },
                [model](UniformNoise noise) mutable { model->set_noise(std::move(noise)); }};
    }

    const auto dim = constructor["dim"].get<std::int64_t>(), heads = constructor["heads"].get<std::int64_t>(),
               head_dim = constructor["dim_head"].get<std::int64_t>();
    if (kind == "FLARE attention") {
        return plain_layer(
            FlareAttention(FlareAttentionOptions{.dim = dim,
                                                 .num_heads = heads,
                                                 .head_dim = head_dim,
                                                 .num_queries = constructor["n_global_queries"].get<std::int64_t>()}));
    }
    SliceOptions slices{.dim = dim, .num_heads = heads, .head_dim = head_dim};
    slices.num_slices = constructor.contains("slice_num") ? constructor["slice_num"].get<std::int64_t>()
                                                          : constructor["n_global_queries"].get<std::int64_t>();
    if (constructor.contains("spatial_shape"))
        slices.grid = constructor["spatial_shape"].get<std::vector<std::int64_t>>();
    if (kind == "GALE" || kind == "GALE_FA") {
        const GaleOptions options{.slices = slices,
                                  .context_dim = constructor.value("context_dim", std::int64_t{0}),
                                  .state_mixing_mode = constructor.value("state_mixing_mode", "weighted")};
        return kind == "GALE" ? layer_with_context(Gale(options)) : layer_with_context(GaleFa(options));
    }
    return plain_layer(PhysicsAttention(slices, 0.0));
}

}  // namespace

const std::set<std::string>& other_kinds()
{
    static const std::set<std::string> kinds{"knn",
                                             "radius_search",
                                             "signed_distance_field",
                                             "error measures",
                                             "compute_force_coefficients",
                                             "neighbourhood attention",
                                             "DoMINO"};
    return kinds;
}

const std::set<std::string>& model_kinds()
{
    static const std::set<std::string> kinds{"Transolver",
                                             "FLARE",
                                             "GeoTransolver",
                                             "MeshGraphNet",
                                             "FIGConvUNet",
                                             "FNO",
                                             "UNet",
                                             "DiT",
                                             "EDMPreconditioner",
                                             "GALE",
                                             "GALE_FA",
                                             "FLARE attention",
                                             "PhysicsAttentionIrregularMesh",
                                             "PhysicsAttentionStructuredMesh2D",
                                             "PhysicsAttentionStructuredMesh3D"};
    return kinds;
}

std::vector<FixtureCase> model_cases()
{
    auto cases = fixture_cases();
    std::erase_if(cases, [](const auto& fixture) { return other_kinds().contains(fixture.kind); });
    return cases;
}

std::string reason_to_skip(const FixtureCase& fixture)
{
    return model_kinds().contains(fixture.kind) ? std::string()
                                                : "meshard has no model or layer of the kind " + fixture.kind;
}

std::string output_name(const std::string& name, std::size_t index, std::size_t num_outputs)
{
    return num_outputs == 1 ? name : name + "." + std::to_string(index);
}

bool is_grid_model(const FixtureCase& fixture)
{
    static const std::set<std::string> kinds{"FNO", "UNet"};
    return kinds.contains(fixture.kind);
}

bool has_rows(const std::string& argument)
{
    return argument != "time" && argument != "global_embedding" && argument != "context";
}

FixtureModel load_fixture_model(const nlohmann::json& description, const NamedTensors& tensors, at::ScalarType type,
                                const std::function<at::Tensor(const at::Tensor&)>& order_rows)
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
    if (tensors.count("noise.0")) {
        EXPECT_TRUE(model.set_noise) << "the model takes no noise";
        std::vector<at::Tensor> draws;
        while (tensors.count("noise." + std::to_string(draws.size()))) {
            const auto draw = tensors.at("noise." + std::to_string(draws.size())).to(type);
            draws.push_back(order_rows ? order_rows(draw) : draw);
        }
        model.set_noise(
            [draws, next = std::size_t{0}](const at::Tensor&) mutable { return draws.at(next++ % draws.size()); });
    }
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
    result.outputs = model.forward(inputs);
    at::Tensor loss = torch::zeros({}, type);
    for (std::size_t i = 0; i < result.outputs.size(); ++i) {
        loss = loss +
               (result.outputs[i] * tensors.at(output_name("grad_output", i, result.outputs.size())).to(type)).sum();
        result.outputs[i] = result.outputs[i].detach();
    }
    loss.backward();
    for (const auto& item : model.module->named_parameters()) {
        ++result.num_parameters;
        if (item.value().grad().defined()) result.gradients["grad." + item.key()] = item.value().grad();
    }
    for (const auto& [name, tensor] : inputs) result.gradients["grad_input." + name] = tensor.grad();
    return result;
}

void expect_reference_values(const FixtureResult& result, const nlohmann::json& description,
                             const NamedTensors& tensors, double slack)
{
    const bool takes_double = has_noisy_single_precision(description);
    for (std::size_t i = 0; i < result.outputs.size(); ++i) {
        const auto name = output_name(takes_double ? "output64" : "output", i, result.outputs.size());
        expect_near(name, result.outputs[i], tensors.at(name),
                    description["suggested_tolerance"].value("output_abs", 2e-6));
    }
    // A case with results in double precision may keep its gradients in that precision only.
    const bool has_single =
        std::any_of(tensors.begin(), tensors.end(), [](const auto& item) { return item.first.rfind("grad.", 0) == 0; });
    const std::string prefix = has_single && !takes_double ? "grad." : "grad64.",
                      input_prefix = takes_double ? "grad_input64." : "grad_input.";
    const auto relative = slack * relative_tolerance(description);
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
            expect_near(own_name, result.gradients.at(own_name), expected,
                        relative * largest(expected) + slack * 1e-6 * largest_gradient);
        } else if (name.rfind(input_prefix, 0) == 0) {
            const auto own_name = "grad_input." + name.substr(input_prefix.size());
            ASSERT_TRUE(result.gradients.count(own_name)) << name;
            expect_near(own_name, result.gradients.at(own_name), expected, relative * largest(expected));
        }
    }
    const auto without = description.value("parameters_without_gradient", nlohmann::json::array()).size();
    EXPECT_EQ(num_gradients, result.num_parameters - without);
}

bool has_double_values(const NamedTensors& tensors)
{
    return std::any_of(tensors.begin(), tensors.end(),
                       [](const auto& item) { return item.first.starts_with("output64"); });
}

void expect_double_values(const FixtureResult& result, const NamedTensors& tensors)
{
    for (std::size_t i = 0; i < result.outputs.size(); ++i) {
        const auto name = output_name("output64", i, result.outputs.size());
        expect_near(name, result.outputs[i], tensors.at(name), 1e-11);
    }
    for (const auto& [name, expected] : tensors) {
        if (!name.starts_with("grad64.") && !name.starts_with("grad_input64.")) continue;
        auto own_name = name;
        own_name.erase(own_name.find("64."), 2);
        ASSERT_TRUE(result.gradients.count(own_name)) << name;
        expect_near(name, result.gradients.at(own_name), expected, 1e-11 * std::max(1.0, largest(expected)));
    }
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
