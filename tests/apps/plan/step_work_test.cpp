// SPDX-License-Identifier: Apache-2.0
// What is counted against what happens: products that LibTorch's dispatcher sees, messages of two ranks, live bytes of tensors.
#include "apps/plan/step_work.h"
#include "models/graph/mesh_graph_net.h"
#include "models/layers/metrics.h"
#include "models/registry/registry.h"
#include "models/transolver/transolver.h"
#include "ops/fused/device_block.h"
#include "ops/neighbors/point_clouds.h"
#include "partition/error.h"
#include "sharding/parameters/replicate.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/live_bytes.h"
#include "tests/support/random_block.h"
#include "tests/support/run_ranks.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>

namespace meshard {
namespace {

using Json = nlohmann::json;

const PlannedWidths kWidths{.inputs = 5, .outputs = 4, .constants = 2};

Json blocks(bool plus = false)
{
    Json arguments{{"n_hidden", 24}, {"n_layers", 3}, {"n_head", 3}, {"slice_num", 7}, {"mlp_ratio", 2}};
    if (plus) arguments["plus"] = true;
    return arguments;
}

Json graph()
{
    return {{"processor_size", 3},
            {"hidden_dim_processor", 12},
            {"hidden_dim_node_encoder", 10},
            {"hidden_dim_edge_encoder", 14},
            {"hidden_dim_node_decoder", 16},
            {"num_layers_edge_encoder", 3},
            {"num_neighbors", 5}};
}

/// Multiplications and additions of matrix products, as they reach LibTorch's dispatcher on this thread while it lives.
class DispatchedProducts {
public:
    DispatchedProducts()
    {
        flop() = 0;
        handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
                                                 const std::string name = function.name();
                                                 const auto inputs = function.inputs();
                                                 const bool adds = name == "aten::addmm" || name == "aten::addmm_" || name == "aten::baddbmm";
                                                 if (!adds && name != "aten::mm" && name != "aten::bmm") return nullptr;
                                                 const auto a = inputs[adds ? 1 : 0].toTensor(), b = inputs[adds ? 2 : 1].toTensor();
                                                 flop() += 2.0 * static_cast<double>(a.numel()) * static_cast<double>(b.size(-1));
                                                 return nullptr;
                                             }).needsInputs(true));
    }
    ~DispatchedProducts() { at::removeCallback(handle_); }

    static double& flop()
    {
        static thread_local double count = 0;
        return count;
    }

private:
    at::CallbackHandle handle_;
};

/// Under autocast to half precision, which the fused operators do not take, blocks run as their authors write them.
class EagerBlocks {
public:
    EagerBlocks() : type_(at::autocast::get_autocast_dtype(at::kCPU))
    {
        at::autocast::set_autocast_enabled(at::kCPU, true);
        at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
        at::autocast::set_autocast_cache_enabled(false);
    }
    ~EagerBlocks()
    {
        at::autocast::set_autocast_enabled(at::kCPU, false);
        at::autocast::set_autocast_dtype(at::kCPU, type_);
        at::autocast::set_autocast_cache_enabled(true);
    }

private:
    at::ScalarType type_;
};

struct ModelCase {
    const char* name;
    std::string model;
    Json arguments;
    MemoryMode memory = MemoryMode::Stored;
};

void PrintTo(const ModelCase& one, std::ostream* out)
{
    *out << one.name;
}

class CountedModels : public testing::TestWithParam<ModelCase> {};

TEST_P(CountedModels, DoTheProductsThatTheDispatcherSees)
{
    constexpr std::int64_t kPoints = 40;
    const auto planned = planned_model(GetParam().model, GetParam().arguments, kWidths);
    const auto model = make_model(planned.name, planned.arguments);
    const auto constants = torch::rand({1, kWidths.constants});
    const PointInputs inputs{
        .embedding = torch::rand({1, kPoints, kWidths.inputs}), .positions = torch::rand({1, kPoints, 3}), .constants = constants, .time = {}};

    at::Tensor prediction;
    const DispatchedProducts products;
    if (planned.name == "meshgraphnet") {
        prediction = model.forward(inputs);
    } else {
        const EagerBlocks eager;
        prediction = model.forward(inputs);
    }
    mean_squared_error(prediction.to(torch::kFloat), torch::rand({1, kPoints, kWidths.outputs})).backward();

    const auto work = step_work(planned, {.points = kPoints, .form = WorkForm::Gpu});
    EXPECT_DOUBLE_EQ(work.useful_flop, DispatchedProducts::flop());
}

INSTANTIATE_TEST_SUITE_P(Plan, CountedModels,
                         testing::Values(ModelCase{"Transolver", "transolver", blocks()}, ModelCase{"TransolverPlus", "transolver", blocks(true)},
                                         ModelCase{"Flare", "flare", blocks()}, ModelCase{"GeoTransolver", "geotransolver", blocks()},
                                         ModelCase{"MeshGraphNet", "meshgraphnet", graph()}),
                         [](const auto& info) { return info.param.name; });

double flop_of_parts(const StepWork& work, std::initializer_list<std::string> parts)
{
    double flop = 0;
    for (const auto& operation : work.operations) {
        if (std::find(parts.begin(), parts.end(), operation.part) != parts.end()) flop += operation.flop();
    }
    return flop;
}

class BlocksOfGpus : public testing::TestWithParam<bool> {};

TEST_P(BlocksOfGpus, DoTheProductsThatTheDispatcherSees)
{
    const bool stored = GetParam();
    constexpr std::int64_t kPoints = 64;
    auto arguments = blocks();
    arguments["n_layers"] = 1;
    const auto planned = planned_model("transolver", arguments, kWidths);
    BlockShape shape{.channels = 24, .heads = 3, .head_dim = 8, .slices = 7, .hidden = 48, .outputs = kWidths.outputs};
    auto block = random_block(shape, torch::kFloat, 0.3);
    block.attend = [](const at::Tensor& tokens, const std::vector<at::Tensor>&) { return tokens * 2; };

    const DispatchedProducts products;
    const auto x = torch::rand({1, kPoints, 24}).requires_grad_();
    fused_block_by_kernels(x, block, {.keep_activations = stored}).sum().backward();

    const auto work = step_work(planned, {.points = kPoints, .memory = stored ? MemoryMode::Stored : MemoryMode::Recomputed, .form = WorkForm::Gpu});
    EXPECT_DOUBLE_EQ(flop_of_parts(work, {"projections", "mlp", "head"}), DispatchedProducts::flop()) << "slices are kernels' own";
}

INSTANTIATE_TEST_SUITE_P(Plan, BlocksOfGpus, testing::Bool(), [](const auto& info) { return info.param ? "Stored" : "Recomputed"; });

TEST(TilesOfBlocks, DoThreeTimesTheForwardPassAndTheWeightsOfSlicesAgain)
{
    const auto planned = planned_model("transolver", blocks(), kWidths);
    const double N = 1000, L = 3, C = 24, S = 7, R = 48, inputs = 7;

    const auto work = step_work(planned, {.points = N, .form = WorkForm::Cpu});

    // Logits are computed in each of the four passes; each of the three other products of slices has two of its kind in backward.
    EXPECT_NEAR(flop_of_parts(work, {"slices"}), N * L * 2 * C * S * (4 + 2 * 3 + 2), 1);
    EXPECT_NEAR(flop_of_parts(work, {"projections", "mlp"}), N * L * 3 * 2 * (3 * C * C + 2 * C * R), 1);
    EXPECT_NEAR(flop_of_parts(work, {"inputs"}), N * 2 * 2 * C * (3 * inputs + 3 * C), 1) << "the hidden layer again in place of the inputs' gradient";
    EXPECT_NEAR(flop_of_parts(work, {"head"}), N * 3 * 2 * C * kWidths.outputs, 1);
}

TEST(TilesOfBlocks, RecomputeAProjectionAndTheMlpsHiddenLayer)
{
    const auto planned = planned_model("transolver", blocks(), kWidths);
    const auto flop = [&](MemoryMode mode, std::initializer_list<std::string> parts) {
        return flop_of_parts(step_work(planned, {.points = 1000, .memory = mode, .form = WorkForm::Cpu}), parts);
    };
    const double N = 1000, L = 3, C = 24, S = 7, R = 48;

    // Forward: the first projection. Backward: it, the output projection, the hidden layer, in the last block the MLP's end, too; then both projections, and
    // the gradient of what points take back. Slices: logits and what points take back.
    EXPECT_NEAR(flop(MemoryMode::Recomputed, {"projections"}) - flop(MemoryMode::Stored, {"projections"}), N * L * 2 * C * C * (1 + 1 + 1 + 2 + 1), 1);
    EXPECT_NEAR(flop(MemoryMode::Recomputed, {"mlp"}) - flop(MemoryMode::Stored, {"mlp"}), N * (L + 1) * 2 * C * R, 1);
    EXPECT_NEAR(flop(MemoryMode::Recomputed, {"slices"}) - flop(MemoryMode::Stored, {"slices"}), N * L * 2 * 2 * C * S, 1);
}

using Calls = std::map<std::pair<std::string, std::int64_t>, std::int64_t>;

Calls counted(const StepWork& work)
{
    Calls calls;
    for (const auto& message : work.messages) calls[{message.operation, message.bytes}] += message.times;
    return calls;
}

Calls recorded(const CommCounter& counter)
{
    Calls calls;
    for (const auto& call : counter.calls()) calls[{call.operation, call.bytes}] += 1;
    return calls;
}

class MessagesOfSteps : public testing::TestWithParam<std::tuple<int, ModelCase>> {};

TEST_P(MessagesOfSteps, AreThoseThatRanksCount)
{
    const auto& [num_ranks, given] = GetParam();
    run_ranks(num_ranks, [&, num_ranks = num_ranks, given = given](const std::shared_ptr<const DeviceMesh>& mesh) {
        const auto planned = planned_model(given.model, given.arguments, kWidths);
        const auto model = make_model(planned.name, planned.arguments);
        set_memory(*model.module, given.memory);
        const auto replicated = replicate(*model.module, mesh);
        const std::int64_t own = mesh->all().rank() == 0 ? 21 : 12;
        const auto rows = [&](std::int64_t channels) { return from_local(torch::rand({1, own, channels}), mesh, {Shard(1)}); };
        const PointInputs inputs{.embedding = rows(kWidths.inputs), .positions = rows(3), .constants = torch::ones({1, kWidths.constants}), .time = {}};
        const auto target = rows(kWidths.outputs);

        mesh->counter().reset();
        mean_squared_error(model.forward(inputs), target).backward();
        auto report = torch::zeros({2}, torch::kDouble);
        mesh->all().all_reduce(report);

        const auto calls = recorded(mesh->counter());
        const auto work = step_work(planned, {.points = static_cast<double>(own), .num_ranks = num_ranks, .memory = given.memory, .form = WorkForm::Cpu});
        EXPECT_EQ(counted(work), calls);
    });
}

INSTANTIATE_TEST_SUITE_P(
    Plan, MessagesOfSteps,
    testing::Combine(testing::Values(2, 3),
                     testing::Values(ModelCase{"Transolver", "transolver", blocks()}, ModelCase{"TransolverPlus", "transolver", blocks(true)},
                                     ModelCase{"Recomputed", "transolver", blocks(), MemoryMode::Recomputed},
                                     ModelCase{"Streamed", "transolver", blocks(), MemoryMode::Streamed},
                                     ModelCase{"TwoBuckets", "transolver", {{"n_hidden", 512}, {"n_layers", 4}, {"n_head", 8}, {"slice_num", 5}}},
                                     ModelCase{"GeoTransolver", "geotransolver", blocks()}, ModelCase{"Flare", "flare", blocks()},
                                     ModelCase{"FlareRecomputed", "flare", blocks(), MemoryMode::Recomputed})),
    [](const auto& info) { return std::string(std::get<1>(info.param).name) + "On" + std::to_string(std::get<0>(info.param)); });

TEST(MessagesOfGraphs, AreThoseOfTwoRanks)
{
    run_ranks(2, [&](const std::shared_ptr<const DeviceMesh>& mesh) {
        const auto planned = planned_model("mesh_graph_net", graph(), kWidths);
        auto arguments = planned.arguments;
        arguments.erase("num_neighbors");
        MeshGraphNet model(mesh_graph_net_options(arguments));
        const auto replicated = replicate(*model, mesh);
        // Each rank's points in a room of their own beside the other's: some hear of no ghosts, and some do.
        const auto rank = mesh->all().rank();
        auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(rank) + 1);
        const auto rows = [&](std::int64_t channels) {
            const auto offset = at::zeros({channels});
            offset[0].fill_(rank);
            return from_local(at::rand({60, channels}, generator) + offset, mesh, {Shard(0)});
        };
        const auto places = rows(3), nodes = rows(kWidths.inputs + kWidths.constants), target = rows(kWidths.outputs);
        const MeshGraph graph(MessageGraph(knn(places, places, 5, {.exclude_self = true})), model->options(), GhostMode::Refresh);
        const auto edges = torch::cat({graph.graph().from_sources(places), torch::ones_like(graph.graph().from_targets(places).narrow(-1, 0, 1))}, -1);

        mesh->counter().reset();
        mean_squared_error(model->forward(nodes, edges, graph), target).backward();
        auto report = torch::zeros({2}, torch::kDouble);
        mesh->all().all_reduce(report);

        // Bytes are of what a rank receives: in forward its own ghosts, in backward those of the other rank that are its rows.
        auto ghosts = torch::zeros({2}, torch::kLong);
        auto calls = recorded(mesh->counter());
        ghosts[mesh->all().rank()] = graph.graph().num_ghosts();
        mesh->all().all_reduce(ghosts);
        const auto of = [&](std::int64_t rank) { return ghosts[rank].item<double>(); };
        auto expected = step_work(planned, {.points = 60, .num_ranks = 2, .ghosts = of(mesh->all().rank()), .form = WorkForm::Cpu});
        for (auto& message : expected.messages) {
            if (message.what == "gradients of ghosts' channels") message.bytes = static_cast<std::int64_t>(of(1 - mesh->all().rank())) * 12 * 4;
        }
        EXPECT_EQ(counted(expected), calls);
    });
}

class MemoryOfSteps : public testing::TestWithParam<ModelCase> {};

/// Slopes over the points, so that what the program holds once does not count.
TEST_P(MemoryOfSteps, IsThatOfLiveTensors)
{
    const auto& given = GetParam();
    const auto planned = planned_model(given.model, given.arguments, kWidths);
    const auto peak_of = [&](std::int64_t points) {
        const LiveBytes bytes;
        const auto model = make_model(planned.name, planned.arguments);
        set_memory(*model.module, given.memory);
        model.module->train();
        torch::optim::AdamW optimizer(model.module->parameters(), torch::optim::AdamWOptions(1e-3));
        const PointInputs inputs{.embedding = torch::rand({1, points, kWidths.inputs}),
                                 .positions = torch::rand({1, points, 3}),
                                 .constants = torch::ones({1, kWidths.constants}),
                                 .time = {}};
        const auto target = torch::rand({1, points, kWidths.outputs});
        for (int step = 0; step < 2; ++step) {
            optimizer.zero_grad();
            mean_squared_error(model.forward(inputs), target * 1.0).backward();
            optimizer.step();
        }
        return static_cast<double>(bytes.peak());
    };
    const auto held = (peak_of(4000) - peak_of(2000)) / 2000;

    const auto memory = step_work(planned, {.points = 4000, .memory = given.memory, .form = WorkForm::Cpu}).memory;
    const auto expected = memory.inputs_per_point + memory.kept_per_point + memory.passing_per_point;
    EXPECT_NEAR(held / expected, 1, 0.1) << held << " bytes a point, expected " << expected;
}

INSTANTIATE_TEST_SUITE_P(Plan, MemoryOfSteps,
                         testing::Values(ModelCase{"Transolver", "transolver", blocks()},
                                         ModelCase{"Recomputed", "transolver", blocks(), MemoryMode::Recomputed},
                                         ModelCase{"GeoTransolver", "geotransolver", blocks()}, ModelCase{"Flare", "flare", blocks()},
                                         ModelCase{"MeshGraphNet", "meshgraphnet", graph()}),
                         [](const auto& info) { return info.param.name; });

TEST(PlannedModels, AreRefusedWhereTheirWorkIsNotCounted)
{
    const auto planning = [](const char* name, const Json& arguments) { return [=] { planned_model(name, arguments, kWidths); }; };
    EXPECT_TRUE(throws_with<InvalidInput>("without dropout", planning("transolver", {{"dropout", 0.1}})));
    EXPECT_TRUE(throws_with<InvalidInput>("ball queries", planning("geotransolver", {{"include_local_features", true}})));
    EXPECT_TRUE(throws_with<InvalidInput>("n_head", planning("transolver", {{"n_hidden", 25}, {"n_head", 4}})));
    EXPECT_TRUE(throws_with<InvalidInput>("Did you mean 'transolver'", planning("transolvr", Json::object())));
    EXPECT_TRUE(throws_with<InvalidInput>("Did you mean 'n_hidden'", planning("transolver", {{"n_hiden", 64}})));
}

}  // namespace
}  // namespace meshard
