// SPDX-License-Identifier: Apache-2.0
// What a training step says to other ranks: counted, and the same for any number of points.
#include "models/layers/metrics.h"
#include "models/transolver/transolver.h"
#include "sharding/parameters/replicate.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/run_ranks.h"
#include "tests/support/small_models.h"

#include <gtest/gtest.h>
#include <torch/types.h>

namespace meshard {
namespace {

constexpr std::int64_t kBatch = 2, kLayers = 3, kHidden = 24, kHeads = 3, kSlices = 7;

TransolverOptions options()
{
    auto options = test::small_transolver();
    options.n_layers = kLayers;
    return options;
}

class TransolverCommunication : public testing::TestWithParam<std::tuple<int, std::int64_t>> {};

TEST_P(TransolverCommunication, IsOneMessageALayerEachWayAndTheGradientsOnce)
{
    const auto [num_ranks, num_points] = GetParam();
    run_ranks(num_ranks, [&](std::shared_ptr<const DeviceMesh> device_mesh) {
        Transolver model(options());
        const auto replicated = replicate(*model, device_mesh);
        const auto own = device_mesh->all().rank() == 0 ? num_points - (num_ranks - 1) * 4 : 4;
        const auto rows = [&](std::int64_t channels) {
            return from_local(torch::randn({kBatch, own, channels}), device_mesh, {Shard(1)});
        };
        const auto fx = rows(2), embedding = rows(3), target = rows(4);
        auto& counter = device_mesh->counter();

        counter.reset();
        const auto loss = mean_squared_error(model->forward(fx, embedding), target);
        ASSERT_EQ(counter.num_calls(), kLayers);
        for (const auto& call : counter.calls()) {
            EXPECT_EQ(call.operation, "all_reduce");
            EXPECT_EQ(call.bytes, 4 * kBatch * (kHidden + kHeads) * kSlices);
        }

        counter.reset();
        loss.backward();
        std::int64_t num_parameters = 0;
        for (const auto& parameter : model->parameters()) num_parameters += parameter.numel();
        ASSERT_EQ(counter.num_calls(), kLayers + 1);
        for (std::int64_t i = 0; i < kLayers; ++i) {
            EXPECT_EQ(counter.calls()[i].operation, "all_reduce");
            EXPECT_EQ(counter.calls()[i].bytes, 4 * kBatch * kHidden * kSlices);
        }
        EXPECT_EQ(counter.calls().back().bytes, 4 * (num_parameters + 1))
            << "every gradient once, in one bucket, and whether some are plain";

        counter.reset();
        loss.item<double>();
        EXPECT_EQ(counter.total_bytes(), 4);
    });
}

INSTANTIATE_TEST_SUITE_P(RanksAndPoints, TransolverCommunication,
                         testing::Combine(testing::Values(2, 3, 5), testing::Values(40, 400)));

}  // namespace
}  // namespace meshard
