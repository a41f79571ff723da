// SPDX-License-Identifier: Apache-2.0
// What a GPU does with streamed blocks, done by the host, against the host's own tiles.
#include "ops/fused/fused_block.h"
#include "ops/fused/streamed_blocks.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/random_block.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>
#include <vector>

namespace meshard {
namespace {

constexpr std::int64_t kStreamPoints = 601, kStreamChannels = 12, kStreamInputs = 5;

struct StreamCase {
    StreamedModel model;
    at::Tensor points;
};

StreamCase make_stream(std::int64_t num_layers, bool with_offset, at::ScalarType type, std::int64_t outputs = 4)
{
    at::manual_seed(5);
    const auto random = [&](at::IntArrayRef sizes) { return at::randn(sizes, type).mul_(0.4).requires_grad_(); };
    StreamCase made;
    made.model.mlp = {
        random({20, kStreamInputs}), random({20}), random({kStreamChannels, 20}), random({kStreamChannels}), {}};
    if (with_offset) made.model.offset = random({2, kStreamChannels});
    for (std::int64_t l = 0; l < num_layers; ++l) {
        auto block = random_block({.channels = kStreamChannels,
                                   .heads = 3,
                                   .head_dim = 8,
                                   .slices = 5,
                                   .hidden = 20,
                                   .outputs = l + 1 == num_layers ? outputs : 0},
                                  type, 0.4);
        block.attend = [](const at::Tensor& tokens, const std::vector<at::Tensor>& weights) {
            return at::matmul(tokens, weights[0]).tanh();
        };
        block.attend_weights = {random({8, 8})};
        block.epsilon = 1e-5;
        made.model.blocks.push_back(std::move(block));
    }
    made.model.tile_points = 250;  // tiles of no full size
    made.points = at::randn({2, kStreamPoints, kStreamInputs}, type);
    return made;
}

struct StreamOutcome {
    at::Tensor result, points_gradient;
    std::vector<at::Tensor> weight_gradients;
};

template <class Apply>
StreamOutcome stream_outcome(const StreamCase& made, const Apply& apply)
{
    auto model = made.model;
    std::vector<at::Tensor> leaves;
    const auto leaf = [&](const at::Tensor& weight) {
        if (!weight.defined()) return weight;
        leaves.push_back(weight.detach().clone().requires_grad_());
        return leaves.back();
    };
    for (auto* weight : {&model.mlp.hidden, &model.mlp.hidden_bias, &model.mlp.out, &model.mlp.out_bias, &model.offset})
        *weight = leaf(*weight);
    for (auto& block : model.blocks) {
        block.weights = block.weights.map(leaf);
        block.attend_weights = {leaf(block.attend_weights[0])};
    }
    const auto points = made.points.detach().clone().requires_grad_();
    const auto result = apply(points, model);
    result.transpose(1, 2).contiguous().square().sum().backward();  // a gradient with channels first
    StreamOutcome outcome{result.detach(), points.grad(), {}};
    for (const auto& weight : leaves) outcome.weight_gradients.push_back(weight.grad());
    return outcome;
}

/// One operator after the other, each block fused on the host: what streaming leaves out is stored here.
at::Tensor block_after_block(const at::Tensor& points, const StreamedModel& model)
{
    auto x = fused_mlp(points, model.mlp, model.offset);
    for (const auto& block : model.blocks) x = fused_block(x, block);
    return x;
}

void expect_stream_near(const StreamOutcome& found, const StreamOutcome& expected, double tolerance)
{
    EXPECT_TRUE(tensors_near(found.result, expected.result, tolerance));
    EXPECT_TRUE(tensors_near(found.points_gradient, expected.points_gradient, tolerance));
    ASSERT_EQ(found.weight_gradients.size(), expected.weight_gradients.size());
    for (std::size_t i = 0; i < found.weight_gradients.size(); ++i) {
        EXPECT_TRUE(tensors_near(found.weight_gradients[i], expected.weight_gradients[i], tolerance)) << "weight " << i;
    }
}

class DeviceStream : public testing::TestWithParam<std::tuple<std::int64_t, bool>> {};

TEST_P(DeviceStream, EqualsTheBlocksOfTheHost)
{
    const auto [num_layers, with_offset] = GetParam();
    const auto made = make_stream(num_layers, with_offset, at::kDouble);
    const auto expected = stream_outcome(made, block_after_block);

    expect_stream_near(stream_outcome(made, streamed_blocks_by_kernels), expected, 1e-9);

    const at::NoGradGuard no_grad;
    EXPECT_TRUE(tensors_near(streamed_blocks_by_kernels(made.points, made.model), expected.result, 1e-11));
}

TEST_P(DeviceStream, IsNearTheHostInSinglePrecision)
{
    const auto [num_layers, with_offset] = GetParam();
    const auto made = make_stream(num_layers, with_offset, at::kFloat);

    const auto found = stream_outcome(made, streamed_blocks_by_kernels),
               expected = stream_outcome(made, block_after_block);

    EXPECT_TRUE(tensors_near(found.result, expected.result, 3e-5));
    EXPECT_TRUE(tensors_near(found.points_gradient, expected.points_gradient, 3e-5));
    double largest = 0, distance = 0;  // a bias of slices gets sums that cancel, and round as the largest do
    for (std::size_t i = 0; i < expected.weight_gradients.size(); ++i) {
        largest = std::max(largest, expected.weight_gradients[i].abs().max().item<double>());
        distance =
            std::max(distance, (found.weight_gradients[i] - expected.weight_gradients[i]).abs().max().item<double>());
    }
    EXPECT_LE(distance, 3e-5 * largest);
}

TEST_P(DeviceStream, SendsWhatTheHostSendsAndEqualsSerialOnUnevenRanks)
{
    const auto [num_layers, with_offset] = GetParam();
    const auto made = make_stream(num_layers, with_offset, at::kDouble);
    const auto expected = stream_outcome(made, block_after_block);
    run_ranks(3, [&, num_layers = num_layers](const auto& mesh) {
        const std::vector<std::int64_t> extents{400, 0, 201};
        const auto rank = mesh->coordinate(0);
        const auto spec = make_spec(mesh, {{Shard(1), std::make_shared<const Extents>(extents), 1}});
        const auto part = [&](const at::Tensor& whole) {
            return whole.narrow(1, rank == 2 ? 400 : 400 * (rank > 0), extents[rank]);
        };
        auto own = made;
        own.points = part(made.points);
        mesh->counter().reset();

        const auto found = stream_outcome(own, [&](const at::Tensor& points, const StreamedModel& model) {
            const auto result = to_local(streamed_blocks_by_kernels(from_local(points, spec), model));
            EXPECT_EQ(mesh->counter().num_calls(), num_layers);
            return result;
        });

        EXPECT_EQ(mesh->counter().num_calls(), 2 * num_layers);
        EXPECT_TRUE(tensors_near(found.result, part(expected.result), 1e-11));
        EXPECT_TRUE(tensors_near(found.points_gradient, part(expected.points_gradient), 1e-9));
    });
}

INSTANTIATE_TEST_SUITE_P(Models, DeviceStream, testing::Combine(testing::Values(1, 3, 9), testing::Bool()));

TEST(DeviceStreamOfOneTile, TakesGradientsWithChannelsFirst)
{
    auto made = make_stream(2, true, at::kDouble, 8);  // as many as a word has, so that nothing is padded
    made.points = made.points.narrow(0, 0, 1);
    made.model.offset = made.model.offset.narrow(0, 0, 1).detach();
    made.model.tile_points = 0;

    expect_stream_near(
        stream_outcome(made, [](const at::Tensor& points,
                                const StreamedModel& model) { return streamed_blocks_by_kernels(points, model); }),
        stream_outcome(made, block_after_block), 1e-9);
}

TEST(StreamedByKernels, KeepsWhatOneTileHasComputed)
{
    auto made = make_stream(6, false, at::kDouble);
    made.model.tile_points = 0;
    made.points = made.points.narrow(0, 0, 1);

    expect_stream_near(stream_outcome(made, streamed_blocks_by_kernels), stream_outcome(made, block_after_block), 1e-9);
}

TEST(StreamedByKernels, RefusesTemperaturesOfPoints)
{
    auto made = make_stream(2, false, at::kDouble);
    made.model.blocks[0].shape.point_temperature = true;

    EXPECT_TRUE(throws_with<InvalidInput>("no temperatures of points",
                                          [&] { streamed_blocks_by_kernels(made.points, made.model); }));
}

}  // namespace
}  // namespace meshard
