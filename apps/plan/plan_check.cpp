// SPDX-License-Identifier: Apache-2.0
#include "apps/plan/plan_check.h"

#include "apps/bench/rank_timing.h"
#include "models/layers/memory_mode.h"
#include "models/layers/metrics.h"
#include "models/registry/registry.h"
#include "sharding/parameters/fused_adamw.h"
#include "sharding/parameters/replicate.h"
#include "sharding/tensor/shard_tensor.h"

#include <torch/torch.h>

#include <functional>
#include <limits>

namespace meshard {
namespace {

/// Of the rank that takes most, the least of several steps.
Seconds least_seconds(const DeviceMesh& mesh, int num_repeats, const std::function<void()>& step)
{
    step();
    auto least = at::full({2}, std::numeric_limits<double>::infinity(), at::kDouble);
    for (int i = 0; i < num_repeats; ++i) {
        mesh.all().barrier();
        const auto seconds = seconds_of(step);
        auto largest = at::tensor({seconds.wall, seconds.cpu}, at::kDouble);
        mesh.all().all_reduce(largest, Reduction::Max);
        least = at::minimum(least, largest);
    }
    return {least[0].item<double>(), least[1].item<double>()};
}

}  // namespace

std::vector<CheckedStep> configurations_to_check()
{
    const auto blocks = [](std::int64_t channels, std::int64_t layers, std::int64_t heads, std::int64_t slices, std::int64_t ratio) {
        return nlohmann::json{{"n_hidden", channels}, {"n_layers", layers}, {"n_head", heads}, {"slice_num", slices}, {"mlp_ratio", ratio}};
    };
    return {
        {"transolver", blocks(64, 4, 4, 32, 2), 20'000, 1},
        {"transolver", blocks(128, 4, 8, 32, 2), 20'000, 1},
        {"transolver", blocks(256, 2, 8, 64, 2), 8'000, 1},
        {"transolver", blocks(128, 2, 8, 256, 1), 10'000, 1},
        {"transolver", blocks(128, 4, 8, 32, 2), 20'000, 1, MemoryMode::Recomputed},
        {"transolver", blocks(64, 4, 4, 32, 2), 10'000, 1, MemoryMode::Streamed},
        {"transolver", blocks(64, 4, 4, 32, 2), 40'000, 2},
        {"transolver", blocks(128, 6, 8, 64, 4), 10'000, 2},
        {"geotransolver", blocks(128, 4, 8, 32, 2), 20'000, 1},
        {"geotransolver", blocks(64, 4, 4, 32, 2), 20'000, 2, MemoryMode::Recomputed},
        {"flare", blocks(128, 2, 8, 32, 2), 16'000, 1},
        {"meshgraphnet",
         {{"processor_size", 4},
          {"hidden_dim_processor", 64},
          {"hidden_dim_node_encoder", 64},
          {"hidden_dim_edge_encoder", 64},
          {"hidden_dim_node_decoder", 64}},
         10'000,
         1},
    };
}

void check_step(CheckedStep& step, const std::shared_ptr<const DeviceMesh>& mesh, const MachineRates& rates, int num_repeats)
{
    const PlannedWidths widths;
    const auto planned = planned_model(step.model, step.arguments, widths);
    const auto own = even_extents(step.points, mesh->num_ranks())[mesh->all().rank()];
    const auto rows = [&](std::int64_t channels) {
        const auto values = torch::rand({1, own, channels});
        return mesh->num_ranks() > 1 ? from_local(values, mesh, {Shard(1)}) : values;
    };
    torch::manual_seed(0);
    auto model = make_model(planned.name, planned.arguments);
    set_memory(*model.module, step.memory);
    const auto replicated = replicate(*model.module, mesh);
    const auto optimizer = make_adamw(model.module->parameters(), torch::optim::AdamWOptions(1e-4));
    const PointInputs inputs{.embedding = rows(widths.inputs), .positions = rows(3), .constants = {}, .time = {}};
    const auto target = rows(widths.outputs);
    model.module->train();

    const auto [wall, cpu] = least_seconds(*mesh, num_repeats, [&] {
        optimizer->zero_grad();
        const auto loss = mean_squared_error(model.forward(inputs), target);
        loss.backward();
        optimizer->step();
        auto report = torch::zeros({2}, torch::kDouble);  // as `train` tells the others
        mesh->all().all_reduce(report);
    });
    step.measured_seconds = at::get_num_threads() == 1 ? cpu : wall;
    step.measured_wall_seconds = wall;
    const auto plan = step_plan(
        planned, {.points = static_cast<double>(step.points), .num_ranks = mesh->num_ranks(), .memory = step.memory, .imbalance = 1, .ghosts = {}}, rates);
    auto predicted = at::full({1}, plan.seconds, at::kDouble);
    mesh->all().all_reduce(predicted, Reduction::Max);
    step.predicted_seconds = predicted.item<double>();
}

}  // namespace meshard
