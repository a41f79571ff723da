// SPDX-License-Identifier: Apache-2.0
// The model of point_mlp.cpp, trained on one rank and on three: it loses the same.
#include "models/layers/metrics.h"
#include "models/registry/registry.h"
#include "sharding/parameters/replicate.h"
#include "sharding/tensor/shard_tensor.h"
#include "sharding/transport/launch.h"

#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <optional>

using namespace meshard;

double last_loss(const PointInputs& inputs, const torch::Tensor& target,
                 const std::function<void(torch::nn::Module&)>& prepare)
{
    torch::manual_seed(3);
    const auto model = make_model("point_mlp", {{"in_dim", 3}, {"out_dim", 1}, {"width", 16}});
    prepare(*model.module);
    torch::optim::AdamW optimizer(model.module->parameters(), torch::optim::AdamWOptions(1e-2));
    double value = 0;
    for (int step = 0; step < 50; ++step) {
        optimizer.zero_grad();
        const auto loss = mean_squared_error(model.forward(inputs), target);
        loss.backward();
        optimizer.step();
        value = loss.item<double>();
    }
    return value;
}

int main()
{
    const auto info = detect_launch();
    if (info.size == 1) return run_local_ranks(3, {});
    const auto world = World::connect(info);
    const auto mesh = DeviceMesh::create(*world, {info.size}, {"domain"});

    torch::manual_seed(1);
    const auto places = torch::rand({1, 60, 3});
    const auto target = torch::sin(4 * places.sum(-1, true));
    const auto shard = [&](const torch::Tensor& whole) {
        return from_local(whole.tensor_split({5, 40}, 1)[info.rank], mesh, {Shard(1)});
    };

    const auto alone =
        last_loss({.embedding = places, .positions = places, .constants = {}}, target, [](torch::nn::Module&) {});
    std::optional<ReplicatedModule> replicated;
    const auto together =
        last_loss({.embedding = shard(places), .positions = shard(places), .constants = {}}, shard(target),
                  [&](torch::nn::Module& module) { replicated.emplace(replicate(module, mesh)); });
    const bool is_same = std::abs(together - alone) < 1e-4 * alone;
    if (info.rank == 0)
        std::printf("loss after 50 steps: %.4f alone, %.4f on 3 ranks, within 1e-4: %s\n", alone, together,
                    is_same ? "yes" : "no");
    world->finish();
    return is_same ? 0 : 1;
}
