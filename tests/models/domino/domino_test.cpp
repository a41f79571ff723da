// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoints/model_checkpoint.h"
#include "models/domino/domino.h"
#include "models/domino/point_networks.h"
#include "partition/error.h"
#include "sharding/parameters/replicate.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixture_cases.h"
#include "tests/support/run_fixture.h"
#include "tests/support/run_ranks.h"
#include "tests/support/test_paths.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>

#include <array>

namespace meshard {
namespace {

using test::NamedTensors;

/// A cut of `length` rows: uneven, with an empty rank where there are many.
std::vector<std::int64_t> uneven_rows(std::int64_t length, int num_ranks, std::int64_t first)
{
    std::vector<std::int64_t> rows(num_ranks, 0);
    auto left = length;
    for (int rank = 0; rank + 1 < num_ranks; ++rank) {
        rows[rank] = rank == 2 ? 0 : std::min<std::int64_t>(left, rank == 0 ? first : 2);
        left -= rows[rank];
    }
    rows.back() = left;
    return rows;
}

bool is_cut(const std::string& name)
{
    return name != "geometry_coordinates" && name.find("global_params") == std::string::npos &&
           name.find("min_max") == std::string::npos;
}

DominoInputs inputs_of(const NamedTensors& tensors)
{
    const auto input = [&](const char* name) {
        const auto found = tensors.find(name);
        return found == tensors.end() ? at::Tensor() : found->second;
    };
    DominoInputs inputs;
    inputs.geometry = input("geometry_coordinates");
    inputs.volume_min_max = input("volume_min_max");
    inputs.surface_min_max = input("surface_min_max");
    inputs.grid = input("grid");
    inputs.surf_grid = input("surf_grid");
    inputs.sdf_grid = input("sdf_grid");
    inputs.sdf_surf_grid = input("sdf_surf_grid");
    inputs.global_values = input("global_params_values");
    inputs.global_reference = input("global_params_reference");
    inputs.volume = {input("volume_mesh_centers"), input("sdf_nodes"), input("pos_volume_closest"),
                     input("pos_volume_center_of_mass")};
    inputs.surface = {
        input("surface_mesh_centers"),      input("surface_normals"),           input("surface_areas"),
        input("surface_mesh_neighbors"),    input("surface_neighbors_normals"), input("surface_neighbors_areas"),
        input("pos_surface_center_of_mass")};
    return inputs;
}

Domino model_of(const nlohmann::json& description, const NamedTensors& tensors, at::ScalarType type)
{
    Domino model(domino_options(description["constructor"]));
    const torch::NoGradGuard no_grad;
    std::size_t num_found = 0;
    const auto fill = [&](const std::string& name, at::Tensor place) {
        const auto found = tensors.find("param." + name);
        ASSERT_TRUE(found != tensors.end()) << name << " is not in the fixture";
        ASSERT_EQ(place.sizes(), found->second.sizes()) << name;
        place.copy_(found->second);
        ++num_found;
    };
    for (auto& item : model->named_parameters()) fill(item.key(), item.value());
    for (auto& item : model->named_buffers()) fill(item.key(), item.value());
    std::size_t num_stored = 0;
    for (const auto& [name, unused] : tensors)
        num_stored += name.starts_with("param.") && !name.starts_with("param.solution_calculator_");  // aliases
    EXPECT_EQ(num_found, num_stored);
    model->to(type);
    model->eval();
    return model;
}

std::vector<test::FixtureCase> domino_cases()
{
    return test::fixture_cases({"DoMINO"});
}

test::FixtureCase case_named(const std::string& name)
{
    for (const auto& fixture : domino_cases()) {
        if (fixture.name == name) return fixture;
    }
    throw std::runtime_error("no fixture " + name);
}

NamedTensors inputs_in(const NamedTensors& tensors)
{
    NamedTensors inputs;
    for (const auto& [name, tensor] : tensors) {
        if (name.starts_with("input.")) inputs[name.substr(6)] = tensor;
    }
    return inputs;
}

class DominoFixtures : public testing::TestWithParam<std::tuple<test::FixtureCase, int>> {};

TEST_P(DominoFixtures, AgreeOnUnevenRanks)
{
    const auto& [fixture, num_ranks] = GetParam();
    const auto description = fixture.description();
    const auto tensors = test::read_tensors(fixture.arrays_path());
    // Attention gates: the reference's single precision has noise there that a constant gate does not have.
    const bool has_gates = description.contains("fp32_with_constant_gates_against_fp64");

    for (const auto type : {torch::kFloat, torch::kDouble}) {
        SCOPED_TRACE(type == torch::kFloat ? "single precision" : "double precision");
        const bool is_double = type == torch::kDouble, takes_double = is_double || has_gates;
        run_ranks(num_ranks, [&](std::shared_ptr<const DeviceMesh> mesh) {
            const auto own = [&](const at::Tensor& whole, bool is_grid) {
                return whole.split_with_sizes(uneven_rows(whole.size(1), num_ranks, is_grid ? 3 : 11),
                                              1)[mesh->coordinate(0)];
            };
            const auto is_of_grid = [](const std::string& name) { return name.find("grid") != std::string::npos; };
            auto model = model_of(description, tensors, type);
            const auto replicated = replicate(*model, mesh);
            NamedTensors leaves, given;
            for (const auto& [name, tensor] : tensors) {
                if (!name.starts_with("input.")) continue;
                const auto argument = name.substr(6);
                if (!is_cut(argument)) {
                    given[argument] = leaves[argument] = tensor.to(type).clone().requires_grad_();
                    continue;
                }
                leaves[argument] = own(tensor.to(type), is_of_grid(argument)).clone().requires_grad_();
                given[argument] = from_local(leaves[argument], mesh, {Shard(1)});
            }
            const auto points = [&](const at::Tensor& whole) {
                return from_local(own(whole.to(type), false).clone(), mesh, {Shard(1)});
            };
            if (tensors.count("noise.0")) {
                model->set_stencil_draws(
                    [&] { return std::pair(points(tensors.at("noise.0")), points(tensors.at("noise.1"))); });
            }

            const auto outputs = model->forward(inputs_of(given));
            at::Tensor loss;
            const std::array<at::Tensor, 2> results{outputs.volume, outputs.surface};
            for (int i = 0; i < 2; ++i) {
                const auto number = i == 0 && tensors.count("output") ? std::string() : "." + std::to_string(i);
                ASSERT_EQ(results[i].defined(), tensors.count("output" + number) == 1);
                if (!results[i].defined()) continue;
                const auto& expected = tensors.at((takes_double ? "output64" : "output") + number);
                const auto tolerance = is_double ? 1e-11 * std::max(1.0, test::largest(expected))
                                                 : description["suggested_tolerance"]["output_abs"].get<double>();
                test::expect_near("output" + number, full_tensor(results[i]).detach(), expected, tolerance);
                const auto part = (results[i] * points(tensors.at("grad_output" + number))).sum();
                loss = loss.defined() ? loss + part : part;
            }
            loss.backward();

            const std::string prefix = takes_double ? "grad64." : "grad.";
            double largest_gradient = 0;
            for (const auto& [name, tensor] : tensors) {
                if (name.starts_with(prefix)) largest_gradient = std::max(largest_gradient, test::largest(tensor));
            }
            std::size_t num_compared = 0;
            for (const auto& item : model->named_parameters()) {
                const auto found = tensors.find(prefix + item.key());
                if (found == tensors.end()) continue;
                ++num_compared;
                const auto scale = test::largest(found->second);
                test::expect_near(item.key(), item.value().grad(), found->second,
                                  is_double ? 1e-11 * std::max(1.0, largest_gradient)
                                            : 5e-5 * scale + 1e-6 * largest_gradient);
            }
            // Gradients in double precision are left out of the largest cases.
            const bool has_gradients = largest_gradient > 0;
            EXPECT_EQ(has_gradients ? num_compared + description["parameters_without_gradient"].size() : 0,
                      has_gradients ? model->parameters().size() : 0);
            for (const auto& [argument, leaf] : leaves) {
                const auto found = tensors.find((takes_double ? "grad_input64." : "grad_input.") + argument);
                if (found == tensors.end()) continue;
                const auto tolerance = (is_double ? 1e-11 : 5e-5) * test::largest(found->second);
                if (is_cut(argument)) {
                    test::expect_near("input " + argument, leaf.grad(), own(found->second, is_of_grid(argument)),
                                      tolerance);
                    continue;
                }
                // What every rank has gets the whole gradient on every rank.
                const auto gradient = is_sharded(leaf.grad()) ? full_tensor(leaf.grad()) : leaf.grad();
                test::expect_near("input " + argument, gradient, found->second, tolerance);
            }
        });
    }
}

INSTANTIATE_TEST_SUITE_P(All, DominoFixtures,
                         testing::Combine(testing::ValuesIn(domino_cases()), testing::Values(1, 2, 3, 5)),
                         [](const auto& info) {
                             return std::get<0>(info.param).name + "_on_" + std::to_string(std::get<1>(info.param));
                         });

TEST(DominoCheckpoint, GivesTheReferencesOutputs)
{
    const std::string folder = source_path("tests/data/fixtures/checkpoints/domino_a");
    const auto values = test::read_tensors(folder + "/values.safetensors");
    const auto checkpoint = read_checkpoint(folder + "/model.mdlus");
    Domino model(domino_options(nlohmann::json::parse(checkpoint.arguments)));
    const torch::NoGradGuard no_grad;
    auto places = model->named_parameters();
    for (const auto& buffer : model->named_buffers()) places.insert(buffer.key(), buffer.value());
    for (const auto& item : places) {
        const auto* array = checkpoint.weights.find(item.key());
        ASSERT_NE(array, nullptr) << item.key();
        at::Tensor(item.value())
            .copy_(torch::from_blob(const_cast<std::byte*>(array->data), array->shape, torch::kFloat));
    }
    model->set_stencil_draws([&] { return std::pair(values.at("noise.0"), values.at("noise.1")); });

    const auto outputs = model->forward(inputs_of(inputs_in(values)));

    test::expect_near("volume", outputs.volume, values.at("output.0"),
                      5e-6 * std::max(1.0, test::largest(values.at("output.0"))));
    test::expect_near("surface", outputs.surface, values.at("output.1"),
                      5e-6 * std::max(1.0, test::largest(values.at("output.1"))));
}

/// How many calls of a collective moved more than a kilobyte: searches agree on errors in messages of a few bytes.
int num_large(const CommCounter& counter, const std::string& operation)
{
    int number = 0;
    for (const auto& call : counter.calls()) number += call.operation == operation && call.bytes > 1000;
    return number;
}

TEST(DominoLocalEncoding, OfOnePointIsThatOfOneRank)
{
    torch::manual_seed(0);
    const auto encoding = torch::randn({1, 2, 27}, torch::kDouble), point = torch::full({1, 1, 3}, 0.4, torch::kDouble);
    const auto axis = torch::linspace(0, 1, 3, torch::kDouble);
    const auto cells = torch::stack(torch::meshgrid({axis, axis, axis}, "ij"), -1).flatten(0, 2).unsqueeze(0);
    LocalEncoding layer(BallQueries{.radii = {0.7}, .neighbors = {4}}, 2, "gelu");
    layer->to(torch::kDouble);
    const auto expected = layer->forward(encoding, cells, point).detach();
    run_ranks(3, [&](std::shared_ptr<const DeviceMesh> mesh) {
        const auto own = point.narrow(1, 0, mesh->coordinate(0) == 1 ? 1 : 0).clone();
        const auto result = layer->forward(encoding, cells, from_local(own, mesh, {Shard(1)}));
        EXPECT_EQ(to_local(result).size(1), own.size(1));
        test::expect_near("features", full_tensor(result).detach(), expected, 1e-14);
    });
}

TEST(DominoMessages, ArePerPointNoneAndOneGatheringOfTheEncoding)
{
    const auto fixture = case_named("domino_surface_stl");
    const auto tensors = test::read_tensors(fixture.arrays_path());
    run_ranks(2, [&](std::shared_ptr<const DeviceMesh> mesh) {
        auto model = model_of(fixture.description(), tensors, torch::kFloat);
        NamedTensors given;
        for (const auto& [name, tensor] : inputs_in(tensors)) {
            given[name] = is_cut(name)
                              ? from_local(tensor.tensor_split(2, 1)[mesh->coordinate(0)].clone(), mesh, {Shard(1)})
                              : tensor;
        }
        mesh->counter().reset();
        const auto output = model->forward(inputs_of(given)).surface;
        EXPECT_EQ(num_large(mesh->counter(), "all_gather"), 1);
        EXPECT_EQ(num_large(mesh->counter(), "all_reduce"), 0);
        mesh->counter().reset();
        output.backward(output.detach());
        EXPECT_EQ(num_large(mesh->counter(), "all_gather"), 0);
        EXPECT_LE(num_large(mesh->counter(), "all_reduce"), 1);
    });
}

TEST(DominoStencils, AreDrawnAnewByPointForAnyCut)
{
    const auto fixture = case_named("domino_combined");
    const auto tensors = test::read_tensors(fixture.arrays_path());
    auto serial = model_of(fixture.description(), tensors, torch::kDouble);
    NamedTensors inputs;
    for (const auto& [name, tensor] : inputs_in(tensors)) inputs[name] = tensor.to(torch::kDouble);
    serial->seed_noise(3);
    const auto first = serial->forward(inputs_of(inputs)), second = serial->forward(inputs_of(inputs));
    EXPECT_GT((first.volume - second.volume).abs().max().item<double>(), 1e-9);
    EXPECT_TRUE(torch::equal(first.surface, second.surface));
    serial->seed_noise(3);
    EXPECT_TRUE(torch::equal(serial->forward(inputs_of(inputs)).volume, first.volume));

    run_ranks(3, [&](std::shared_ptr<const DeviceMesh> mesh) {
        auto model = model_of(fixture.description(), tensors, torch::kDouble);
        model->seed_noise(3);
        NamedTensors given;
        for (const auto& [name, tensor] : inputs) {
            given[name] =
                is_cut(name)
                    ? from_local(
                          tensor.split_with_sizes(uneven_rows(tensor.size(1), 3, 5), 1)[mesh->coordinate(0)].clone(),
                          mesh, {Shard(1)})
                    : tensor;
        }
        test::expect_near("volume", full_tensor(model->forward(inputs_of(given)).volume), first.volume.detach(), 1e-11);
    });
}

TEST(DominoMemory, RecomputedNetworksGiveTheSameGradients)
{
    const auto fixture = case_named("domino_combined");
    const auto tensors = test::read_tensors(fixture.arrays_path());
    const auto gradients = [&](MemoryMode mode) {
        auto model = model_of(fixture.description(), tensors, torch::kDouble);
        model->set_memory(mode);
        model->set_stencil_draws([&] {
            return std::pair(tensors.at("noise.0").to(torch::kDouble), tensors.at("noise.1").to(torch::kDouble));
        });
        NamedTensors inputs;
        for (const auto& [name, tensor] : inputs_in(tensors)) inputs[name] = tensor.to(torch::kDouble);
        const auto outputs = model->forward(inputs_of(inputs));
        (outputs.volume.sum() + outputs.surface.square().sum()).backward();
        NamedTensors all;
        for (const auto& item : model->named_parameters()) all[item.key()] = item.value().grad();
        return all;
    };
    const auto stored = gradients(MemoryMode::Stored), recomputed = gradients(MemoryMode::Recomputed);
    for (const auto& [name, gradient] : stored)
        test::expect_near(name, recomputed.at(name), gradient, 1e-13 * std::max(1.0, test::largest(gradient)));
    EXPECT_TRUE(throws_with<InvalidInput>("only Transolver has the memory mode `streamed`",
                                          [&] { gradients(MemoryMode::Streamed); }));
}

TEST(DominoOptions, AreWrittenAsTheyAreRead)
{
    for (const auto& fixture : domino_cases()) {
        const auto arguments = fixture.description()["constructor"];
        const auto written = to_json(domino_options(arguments));
        EXPECT_EQ(to_json(domino_options(written)), written) << fixture.name;
        EXPECT_EQ(written["model_parameters"]["geometry_rep"]["geo_conv"],
                  arguments["model_parameters"]["geometry_rep"]["geo_conv"])
            << fixture.name;
    }
    const auto defaults = domino_options({{"output_features_surf", 4}});
    EXPECT_EQ(defaults.grid, (std::array<std::int64_t, 3>{128, 64, 64}));
    EXPECT_EQ(defaults.parameters.fourier_features, false);
}

TEST(DominoOptions, NameWhatIsImpossible)
{
    const auto refusal = [](const std::string& text, const nlohmann::json& arguments) {
        EXPECT_TRUE(throws_with<InvalidInput>(text, [&] { domino_options(arguments).validate(); }));
    };
    refusal("output_features_vol or output_features_surf must be set", nlohmann::json::object());
    refusal("there is no argument 'output_features_sur'. Did you mean 'output_features_surf'?",
            {{"output_features_sur", 4}});
    refusal("every key must be there",
            {{"output_features_surf", 4}, {"model_parameters", {{"interp_res", {8, 8, 8}}}}});
    auto arguments = case_named("domino_combined").description()["constructor"];
    arguments["model_parameters"]["interp_res"] = {12, 8, 8};
    refusal("interp_res must be multiples of 8 for the processor 'conv'; 12 is not", arguments);
    arguments["model_parameters"]["interp_res"] = {16, 8, 8};
    arguments["model_parameters"]["position_encoder"]["base_neuron"] = 3;
    refusal("model_parameters.position_encoder has no key 'base_neuron'. Did you mean 'base_neurons'?", arguments);

    const auto fixture = case_named("domino_combined");
    const auto tensors = test::read_tensors(fixture.arrays_path());
    auto model = model_of(fixture.description(), tensors, torch::kFloat);
    auto inputs = inputs_of(inputs_in(tensors));
    inputs.sdf_surf_grid = at::Tensor();
    EXPECT_TRUE(throws_with<InvalidInput>("sdf_surf_grid must be (2, 8, 8, 8), and is missing",
                                          [&] { model->forward(inputs); }));
}

}  // namespace
}  // namespace meshard
