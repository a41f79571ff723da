// SPDX-License-Identifier: Apache-2.0
// Every model on several ranks against itself on one: outputs, loss, the gradient of every parameter, and a short
// training.
#include "models/geotransolver/geotransolver.h"
#include "models/graph/ab_upt.h"
#include "models/graph/mesh_graph_net.h"
#include "models/layers/metrics.h"
#include "models/transolver/flare.h"
#include "models/transolver/transolver.h"
#include "ops/neighbors/point_clouds.h"
#include "sharding/parameters/move_module.h"
#include "sharding/parameters/replicate.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/copy_parameters.h"
#include "tests/support/run_fixture.h"
#include "tests/support/run_ranks.h"
#include "tests/support/small_models.h"
#include "tests/support/test_device.h"

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/optim/adamw.h>

#include <functional>
#include <map>

namespace meshard {
namespace {

using NamedTensors = std::map<std::string, at::Tensor>;

/// A model and its forward by names of inputs.
struct Runnable {
    std::shared_ptr<torch::nn::Module> module;
    std::function<at::Tensor(const NamedTensors&)> forward;
};

struct ModelCase {
    std::string name;
    std::vector<std::pair<std::string, std::vector<std::int64_t>>> inputs;  ///< (B, rows, ...), cut along the rows
    std::function<Runnable()> make;
    at::ScalarType training_type = at::kFloat;
};

void PrintTo(const ModelCase& model, std::ostream* out)
{
    *out << model.name;
}

constexpr std::int64_t kPoints = 57, kGeometry = 31;

Runnable make_geotransolver(GeoTransolverOptions options)
{
    GeoTransolver model(std::move(options));
    return {model.ptr(), [model](const NamedTensors& inputs) mutable {
                return model
                    ->forward({.local_embedding = {inputs.at("fx")},
                               .global_embedding =
                                   torch::linspace(-1, 1, 2 * inputs.at("fx").size(0), inputs.at("places").options())
                                       .view({-1, 1, 2}),
                               .geometry = inputs.at("geometry"),
                               .local_positions = {inputs.at("places")}})
                    .at(0);
            }};
}

template <class ModelHolder>
Runnable make_transolver(TransolverOptions options)
{
    ModelHolder model(options);
    return {model.ptr(), [model](const NamedTensors& inputs) mutable {
                return model->forward(inputs.at("fx"), inputs.at("places"));
            }};
}

Runnable make_mesh_graph_net(GhostMode mode, const std::string& aggregation, bool split_edges = false)
{
    MeshGraphNetOptions options;
    options.input_dim_nodes = 2;
    options.input_dim_edges = 4;
    options.output_dim = 4;
    options.processor_size = 3;
    options.hidden_dim_processor = options.hidden_dim_node_encoder = options.hidden_dim_edge_encoder =
        options.hidden_dim_node_decoder = 12;
    options.aggregation = aggregation;
    options.do_concat_trick = split_edges;
    MeshGraphNet model(options);
    return {model.ptr(), [model, options, mode](const NamedTensors& inputs) mutable {
                const auto places = unbind_clouds("test", "places", inputs.at("places")).at(0);
                const MeshGraph graph(MessageGraph(knn(places, places, 4, {.exclude_self = true})), options, mode);
                const auto gap = graph.graph().from_sources(places) - graph.graph().from_targets(places);
                const auto edges = torch::cat({gap, gap.square().sum(-1, true).sqrt()}, -1);
                return model->forward(unbind_clouds("test", "nodes", inputs.at("fx")).at(0), edges, graph).unsqueeze(0);
            }};
}

Runnable make_ab_upt()
{
    AbUptOptions options;
    options.surface_dim = options.volume_dim = 4;
    options.hidden_dim = 24;
    options.num_heads = 2;
    options.mlp_ratio = 2;
    options.radius = 0.4;
    options.max_degree = 5;
    options.physics_blocks = {"perceiver", "shared", "cross", "joint"};
    options.num_surface_blocks = options.num_volume_blocks = 1;
    AbUpt model(options);
    return {model.ptr(), [model](const NamedTensors& inputs) mutable {
                const auto outputs = model->forward({.geometry = inputs.at("geometry"),
                                                     .supernodes = inputs.at("supernodes"),
                                                     .surface_anchors = inputs.at("places"),
                                                     .volume_anchors = inputs.at("volume"),
                                                     .surface_queries = inputs.at("queries"),
                                                     .volume_queries = {},
                                                     .condition = {}});
                return outputs.surface_anchors + outputs.volume_anchors.mean(1, true) +
                       outputs.surface_queries.square().mean(1, true);
            }};
}

std::vector<ModelCase> model_cases()
{
    const std::vector<std::pair<std::string, std::vector<std::int64_t>>> points{{"fx", {2, kPoints, 2}},
                                                                                {"places", {2, kPoints, 3}}};
    auto with_geometry = points;
    with_geometry.emplace_back("geometry", std::vector<std::int64_t>{2, kGeometry, 3});
    const std::vector<std::pair<std::string, std::vector<std::int64_t>>> cloud{{"fx", {1, kPoints, 2}},
                                                                               {"places", {1, kPoints, 3}}};
    const auto geotransolver = [](auto change) {
        return [change] {
            auto options = test::small_geotransolver_with_neighbors();
            change(options);
            return make_geotransolver(options);
        };
    };
    return {
        {"Flare", points, [] { return make_transolver<Flare>(test::small_transolver()); }},
        {"TransolverPlus", points,
         [] {
             auto options = test::small_transolver();
             options.plus = true;
             Transolver model(options);
             model->set_noise(NoiseWhen::Always);  // belongs to the points
             return Runnable{model.ptr(), [model](const NamedTensors& inputs) mutable {
                                 return model->forward(inputs.at("fx"), inputs.at("places"));
                             }};
         },
         at::kDouble},  // slices under noise are so steep that single precision's rounding grows to 1.5e-4 in 100 steps

        {"GeoTransolver", with_geometry, geotransolver([](auto& o) { o.include_local_features = false; })},
        {"GeoTransolverLocal", with_geometry, geotransolver([](auto&) {})},
        {"GeoTransolverLocalFa", with_geometry,
         geotransolver([](auto& o) { o.attention_type = "GALE_FA", o.state_mixing_mode = "concat_project"; })},
        {"MeshGraphNetRefreshed", cloud, [] { return make_mesh_graph_net(GhostMode::Refresh, "sum"); }},
        {"MeshGraphNetDeep", cloud, [] { return make_mesh_graph_net(GhostMode::Deep, "mean"); }},
        {"MeshGraphNetAuto", cloud, [] { return make_mesh_graph_net(GhostMode::Auto, "sum"); }},
        {"MeshGraphNetSplitEdges", cloud, [] { return make_mesh_graph_net(GhostMode::Refresh, "mean", true); }},
        {"MeshGraphNetSplitEdgesDeep", cloud, [] { return make_mesh_graph_net(GhostMode::Deep, "sum", true); }},
        {"AbUpt",
         {{"places", {2, kPoints, 3}},
          {"geometry", {2, kGeometry, 3}},
          {"supernodes", {2, 9, 3}},
          {"volume", {2, 23, 3}},
          {"queries", {2, 15, 3}}},
         make_ab_upt},
    };
}

/// Rows of one rank: all but a few on the last one and none on the first, or dealt out at random.
std::vector<std::int64_t> own_rows(std::int64_t num_rows, int rank, int num_ranks, bool one_empty)
{
    std::vector<std::int64_t> rows;
    for (std::int64_t i = 0; i < num_rows; ++i) {
        const auto owner = num_ranks == 1 ? 0
                           : one_empty    ? (i % 7 == 0 ? 1 : num_ranks - 1)
                                          : (i * i + i / 3) % num_ranks;
        if (owner == rank) rows.push_back(i);
    }
    return rows;
}

at::Tensor own_part(const at::Tensor& whole, const std::vector<std::int64_t>& rows)
{
    return whole.index_select(1, torch::tensor(rows, torch::kLong));
}

at::Tensor shard(const at::Tensor& whole, const std::vector<std::int64_t>& rows,
                 const std::shared_ptr<const DeviceMesh>& device_mesh)
{
    const IndexMap map{.num_global = whole.size(1),
                       .num_owned = static_cast<std::int32_t>(rows.size()),
                       .global_ids = rows,
                       .ghost_owners = {}};
    return from_local(own_part(whole, rows).to(device_of_tests()),
                      shard_spec(std::make_shared<const IndexMap>(map), device_mesh, 1));
}

/// With weights of some size, so that no part of the model is idle.
Runnable rough_model(const ModelCase& model, at::ScalarType type)
{
    torch::manual_seed(4);
    auto made = model.make();
    torch::NoGradGuard no_grad;
    for (auto& parameter : made.module->parameters()) parameter.add_(0.1 * torch::randn_like(parameter));
    made.module->to(type);
    return made;
}

NamedTensors random_inputs(const ModelCase& model, at::ScalarType type)
{
    torch::manual_seed(6);
    NamedTensors inputs;
    for (const auto& [name, shape] : model.inputs) inputs[name] = torch::rand(shape, torch::kDouble).to(type);
    if (inputs.count("supernodes"))
        inputs["supernodes"] = inputs.at("geometry").narrow(1, 0, inputs.at("supernodes").size(1)).clone();
    return inputs;
}

class ShardedModels : public testing::TestWithParam<std::tuple<ModelCase, int, bool>> {};

TEST_P(ShardedModels, EqualSerial)
{
    const auto& [model, num_ranks, one_empty] = GetParam();
    const auto inputs = random_inputs(model, at::kDouble);
    auto serial = rough_model(model, at::kDouble);
    serial.module->eval();
    const auto expected = serial.forward(inputs);
    const auto target = torch::randn_like(expected);
    const auto expected_loss = mean_squared_error(expected, target);
    expected_loss.backward();
    double largest_gradient = 0;
    for (const auto& parameter : serial.module->parameters()) {
        if (parameter.grad().defined()) largest_gradient = std::max(largest_gradient, test::largest(parameter.grad()));
    }

    run_ranks(num_ranks, [&, &model = model, num_ranks = num_ranks,
                          one_empty = one_empty](std::shared_ptr<const DeviceMesh> device_mesh) {
        const auto rank = device_mesh->all().rank();
        const auto rows_of = [&](const at::Tensor& whole) {
            return own_rows(whole.size(1), rank, num_ranks, one_empty);
        };
        auto sharded = model.make();
        sharded.module->to(at::kDouble);
        move_module(*sharded.module, device_of_tests());
        sharded.module->eval();
        if (rank == 0)
            test::copy_parameters(*serial.module, *sharded.module);  // the others get theirs from `replicate`
        const auto replicated = replicate(*sharded.module, device_mesh);
        NamedTensors parts;
        for (const auto& [name, whole] : inputs) parts[name] = shard(whole, rows_of(whole), device_mesh);

        const auto output = sharded.forward(parts);
        const auto loss = mean_squared_error(output, shard(target, rows_of(target), device_mesh));
        loss.backward();

        test::expect_near("output", to_local(output).detach().cpu(), own_part(expected.detach(), rows_of(expected)),
                          1e-11 * test::largest(expected));
        EXPECT_NEAR(loss.item<double>(), expected_loss.item<double>(), 1e-11 * expected_loss.item<double>());
        const auto parameters = sharded.module->named_parameters();
        for (const auto& item : serial.module->named_parameters()) {
            const auto& gradient = item.value().grad();
            ASSERT_EQ(gradient.defined(), parameters[item.key()].grad().defined()) << item.key();
            if (gradient.defined())
                test::expect_near(item.key(), parameters[item.key()].grad().cpu(), gradient, 1e-11 * largest_gradient);
        }
    });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShardedModels,
                         testing::Combine(testing::ValuesIn(model_cases()), testing::Values(1, 2, 3, 5),
                                          testing::Bool()),
                         [](const auto& info) {
                             return std::get<0>(info.param).name + "_" + std::to_string(std::get<1>(info.param)) +
                                    (std::get<2>(info.param) ? "_one_empty" : "_random");
                         });

class TrainedModels : public testing::TestWithParam<ModelCase> {};

TEST_P(TrainedModels, LoseAsMuchOnRanksAsAlone)
{
    constexpr int kRanks = 3, kSteps = 100;
    const auto& model = GetParam();
    const auto inputs = random_inputs(model, model.training_type);
    const auto target = torch::sin(3 * inputs.at("places").sum(-1, true)) * torch::ones({1, 1, 4}, model.training_type);
    const auto losses = [&](Runnable& trained, const NamedTensors& given, const at::Tensor& wanted) {
        torch::optim::AdamW optimizer(trained.module->parameters(), torch::optim::AdamWOptions(1e-3));
        std::vector<double> values;
        for (int step = 0; step < kSteps; ++step) {
            optimizer.zero_grad();
            const auto loss = mean_squared_error(trained.forward(given), wanted);
            loss.backward();
            optimizer.step();
            values.push_back(loss.template item<double>());
        }
        return values;
    };
    torch::manual_seed(4);
    auto start = model.make();
    auto serial = model.make();
    start.module->to(model.training_type);
    serial.module->to(model.training_type);
    test::copy_parameters(*start.module, *serial.module);
    const auto expected = losses(serial, inputs, target);

    run_ranks(kRanks, [&](std::shared_ptr<const DeviceMesh> device_mesh) {
        const auto rank = device_mesh->all().rank();
        const auto part = [&](const at::Tensor& whole) {
            return shard(whole, own_rows(whole.size(1), rank, kRanks, true), device_mesh);
        };
        auto sharded = model.make();
        sharded.module->to(model.training_type);
        move_module(*sharded.module, device_of_tests());
        if (rank == 0) test::copy_parameters(*start.module, *sharded.module);
        const auto replicated = replicate(*sharded.module, device_mesh);
        NamedTensors parts;
        for (const auto& [name, whole] : inputs) parts[name] = part(whole);

        const auto found = losses(sharded, parts, part(target));

        for (int step = 0; step < kSteps; ++step)
            EXPECT_NEAR(found[step], expected[step], 1e-4 * expected[step]) << "step " << step;
    });
    EXPECT_LT(expected.back(), 0.9 * expected.front()) << "it learns something";
}

INSTANTIATE_TEST_SUITE_P(All, TrainedModels, testing::ValuesIn(model_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace meshard
