// SPDX-License-Identifier: Apache-2.0
// What a training step asks of a device, counted by the stand-in accelerator: launches follow the layers, not the points or the CPU's threads.
#include "models/layers/precision.h"
#include "models/transolver/transolver.h"
#include "tests/support/standin/standin.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>

namespace meshard {
namespace {

struct StepLaunches {
    std::int64_t all = 0, of_kernels = 0, syncs = 0;
};

/// The launches of a training step in bfloat16, the third of a model.
StepLaunches launches_of_a_step(std::int64_t num_layers, std::int64_t num_points, int num_threads)
{
    const torch::Device device(c10::DeviceType::PrivateUse1, 0);
    const auto threads_before = at::get_num_threads();
    at::set_num_threads(num_threads);
    TransolverOptions options;
    options.functional_dim = 4;
    options.embedding_dim = 3;
    options.out_dim = 4;
    options.n_layers = num_layers;
    options.n_hidden = 16;
    options.n_head = 2;
    options.slice_num = 16;
    options.mlp_ratio = 2;
    Transolver model(options);
    model->to(device);
    const auto fx = torch::rand({1, num_points, 4}).to(device), position = torch::rand({1, num_points, 3}).to(device),
               target = torch::rand({1, num_points, 4}).to(device);
    StepLaunches found;
    for (int turn = 0; turn < 3; ++turn) {
        loaded_standin()->reset_counters(0);
        torch::Tensor result;
        {
            const PrecisionGuard guard(Precision::BFloat16, device.type());
            result = model->forward(fx, position);
        }
        torch::mse_loss(result.to(torch::kFloat), target).backward();
        model->zero_grad();
        const auto counters = loaded_standin()->counters(0);
        const auto kernels = counters.launched.find("meshard::kernel");
        found = {counters.launches, kernels == counters.launched.end() ? 0 : kernels->second, counters.syncs};
    }
    at::set_num_threads(threads_before);
    return found;
}

TEST(DeviceLaunches, FollowTheLayersAndNotThePointsOrThreads)
{
    if (!loaded_standin()) GTEST_SKIP() << "only the stand-in accelerator counts what it is asked to do";
    const auto one = launches_of_a_step(1, 1000, 1), three = launches_of_a_step(3, 1000, 1);

    EXPECT_EQ(launches_of_a_step(3, 1000, 16).all, three.all);
    EXPECT_EQ(launches_of_a_step(3, 100000, 1).all, three.all);
    EXPECT_EQ(launches_of_a_step(3, 100000, 16).all, three.all);
    EXPECT_GT(three.of_kernels, one.of_kernels);
    EXPECT_EQ(three.syncs, 0);
    const auto of_a_layer = (three.all - one.all) / 2;
    RecordProperty("launches_of_a_layer", static_cast<int>(of_a_layer));
    EXPECT_LE(of_a_layer, 110);
}

}  // namespace
}  // namespace meshard
