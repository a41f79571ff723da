// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/training_benchmark.h"

#include "apps/bench/rank_timing.h"
#include "apps/console/repeated_times.h"
#include "models/layers/metrics.h"
#include "models/transolver/transolver.h"
#include "sharding/parameters/fused_adamw.h"
#include "sharding/parameters/move_module.h"
#include "sharding/parameters/replicate.h"
#include "sharding/tensor/shard_tensor.h"

#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <memory>
#include <vector>

namespace meshard {
namespace {

/// A model with its optimiser.
struct Trainee {
    Transolver model;
    std::unique_ptr<torch::optim::AdamW> optimizer;
    at::Device device;

    Trainee(const TransolverOptions& options, const at::Device& device)
        : model(moved(options, device)), optimizer(make_adamw(model->parameters(), torch::optim::AdamWOptions(1e-3))),
          device(device)
    {
    }

    static Transolver moved(const TransolverOptions& options, const at::Device& device)
    {
        Transolver model(options);
        move_module(*model, device);
        return model;
    }

    void step(const torch::Tensor& fx, const torch::Tensor& embedding, const torch::Tensor& target)
    {
        optimizer->zero_grad();
        mean_squared_error(model->forward(fx, embedding), target).backward();
        optimizer->step();
        wait_for_device(device);
    }
};

}  // namespace

StepTimes time_training_step(const StepShape& shape, int num_repeats, World& world)
{
    const auto mesh = DeviceMesh::create(world, {world.size()}, {"domain"});
    const auto& ranks = mesh->all();
    TransolverOptions options;
    options.functional_dim = 1;
    options.embedding_dim = 6;
    options.out_dim = 4;
    options.n_layers = shape.n_layers;
    options.n_hidden = shape.n_hidden;
    options.n_head = shape.n_head;
    options.slice_num = shape.slice_num;
    options.mlp_ratio = 2;

    torch::manual_seed(0);
    const auto device = world.device();
    Trainee plain(options, device), sharded(options, device);
    const auto replicated = replicate(*sharded.model, mesh);
    const auto extents = even_extents(shape.num_points, ranks.size());
    const auto own = extents[ranks.rank()];
    const auto fx = torch::ones({1, own, 1}, device), embedding = torch::rand({1, own, 6}, device),
               target = torch::rand({1, own, 4}, device);
    const std::vector<AxisLayout> axes{{Shard(1), std::make_shared<Extents>(extents), 1}};
    const auto spec = make_spec(mesh, axes);
    const auto sharded_fx = from_local(fx, spec), sharded_embedding = from_local(embedding, spec),
               sharded_target = from_local(target, spec);

    std::vector<double> plain_seconds, sharded_seconds, ratios;
    std::vector<CommCounter::Call> step_calls;
    for (int i = -3; i < num_repeats; ++i) {  // three pairs to warm up
        const auto a = seconds_together(*mesh, [&] { plain.step(fx, embedding, target); });
        const auto b = seconds_together(*mesh, [&] {
            mesh->counter().reset();
            sharded.step(sharded_fx, sharded_embedding, sharded_target);
            step_calls = mesh->counter().calls();
        });
        if (i < 0) continue;
        plain_seconds.push_back(a);
        sharded_seconds.push_back(b);
        ratios.push_back(b / a);
    }

    StepTimes times;
    times.num_ranks = ranks.size();
    times.threads_per_rank = at::get_num_threads();
    times.plain_seconds = median(plain_seconds);
    times.sharded_seconds = median(sharded_seconds);
    times.sharded_over_plain = median(ratios);
    for (const auto& call : step_calls) {
        times.num_messages += 1;
        times.message_bytes += call.bytes;
    }
    return times;
}

}  // namespace meshard
