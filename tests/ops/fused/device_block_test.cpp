// SPDX-License-Identifier: Apache-2.0
// What a GPU does with an attention block, done by the host, against the host's own tiles.
#include "ops/fused/device_block.h"
#include "ops/fused/fused_block.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/random_block.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

namespace meshard {
namespace {

struct BlockCase {
    FusedBlock block;
    at::Tensor x;
};

BlockCase make_case(std::int64_t head_dim, std::int64_t outputs, at::ScalarType type)
{
    at::manual_seed(3);
    BlockCase made;
    made.block = random_block(
        {.channels = 12, .heads = 3, .head_dim = head_dim, .slices = 5, .hidden = 20, .outputs = outputs}, type, 0.4);
    made.block.attend = [](const at::Tensor& tokens, const std::vector<at::Tensor>& weights) {
        return at::matmul(tokens, weights[0]).tanh();
    };
    made.block.attend_weights = {at::randn({head_dim, head_dim}, type).requires_grad_()};
    made.block.epsilon = 1e-5;
    made.x = at::randn({2, 601, 12}, type);  // chunks and tiles of no full size
    return made;
}

struct Outcome {
    at::Tensor result, x_gradient;
    std::vector<at::Tensor> weight_gradients;
};

template <class Apply>
Outcome outcome_of(const BlockCase& made, const Apply& apply)
{
    auto block = made.block;
    const auto leaf = [](const at::Tensor& weight) {
        return weight.defined() ? weight.detach().clone().requires_grad_() : weight;
    };
    block.weights = block.weights.map(leaf);
    block.attend_weights = {leaf(block.attend_weights[0])};
    const auto x = made.x.detach().clone().requires_grad_();
    const auto result = apply(x, block);
    result.transpose(1, 2).contiguous().square().sum().backward();  // a gradient with channels first
    Outcome outcome{result.detach(), x.grad(), {}};
    for (const auto* weight : block.weights.all()) {
        if (weight->defined()) outcome.weight_gradients.push_back(weight->grad());
    }
    outcome.weight_gradients.push_back(block.attend_weights[0].grad());
    return outcome;
}

void expect_near(const Outcome& found, const Outcome& expected, double tolerance)
{
    EXPECT_TRUE(tensors_near(found.result, expected.result, tolerance));
    EXPECT_TRUE(tensors_near(found.x_gradient, expected.x_gradient, tolerance));
    ASSERT_EQ(found.weight_gradients.size(), expected.weight_gradients.size());
    for (std::size_t i = 0; i < found.weight_gradients.size(); ++i) {
        EXPECT_TRUE(tensors_near(found.weight_gradients[i], expected.weight_gradients[i], tolerance)) << "weight " << i;
    }
}

class DeviceBlock : public testing::TestWithParam<std::tuple<std::int64_t, std::int64_t, bool>> {};

TEST_P(DeviceBlock, EqualsTheTilesOfTheHost)
{
    const auto [head_dim, outputs, keep] = GetParam();
    const FusedOptions options{.keep_activations = keep, .tile_points = 400};
    auto made = make_case(head_dim, outputs, at::kDouble);
    for (const std::int64_t num_samples : {2, 1}) {
        SCOPED_TRACE(num_samples);
        made.x = made.x.narrow(0, 0, num_samples);
        const auto expected =
            outcome_of(made, [](const at::Tensor& x, const FusedBlock& block) { return fused_block(x, block); });

        expect_near(
            outcome_of(made, [&](const at::Tensor& x,
                                 const FusedBlock& block) { return fused_block_by_kernels(x, block, options); }),
            expected, 1e-10);

        const at::NoGradGuard no_grad;
        EXPECT_TRUE(tensors_near(fused_block_by_kernels(made.x, made.block, options), expected.result, 1e-12));
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, DeviceBlock,
                         testing::Combine(testing::Values(4, 16, 24, 40), testing::Values(0, 3),
                                          testing::Bool()));  // heads in registers and in memory

TEST(DeviceBlockSums, AreNearThoseOfTheHostInSinglePrecision)
{
    const auto made = make_case(8, 4, at::kFloat);

    const auto found =
        outcome_of(made, [](const at::Tensor& x, const FusedBlock& block) { return fused_block_by_kernels(x, block); });

    expect_near(found,
                outcome_of(made, [](const at::Tensor& x, const FusedBlock& block) { return fused_block(x, block); }),
                3e-5);
}

TEST(DeviceBlockSums, AreTheSameInASecondBackward)
{
    const auto made = make_case(8, 4, at::kDouble);
    auto block = made.block;
    block.weights =
        block.weights.map([](const at::Tensor& w) { return w.defined() ? w.detach().clone().requires_grad_() : w; });
    const auto x = made.x.detach().clone().requires_grad_();
    const auto loss = fused_block_by_kernels(x, block).square().sum();
    const std::vector<at::Tensor> inputs{x, block.weights.norm1.weight, block.weights.project_fx.weight,
                                         block.weights.hidden.bias, block.weights.out.weight};
    const auto once = torch::autograd::grad({loss}, inputs, {}, /*retain_graph=*/true);
    const auto again = torch::autograd::grad({loss}, inputs);
    for (std::size_t i = 0; i < inputs.size(); ++i) EXPECT_TRUE(at::equal(once[i], again[i])) << i;
}

TEST(DeviceBlockSums, TravelBetweenRanks)
{
    const auto made = make_case(8, 4, at::kDouble);
    const auto expected =
        outcome_of(made, [](const at::Tensor& x, const FusedBlock& block) { return fused_block(x, block); });
    run_ranks(3, [&](const auto& mesh) {
        const std::vector<std::int64_t> extents{400, 0, 201};
        const auto rank = mesh->coordinate(0);
        const auto spec = make_spec(mesh, {{Shard(1), std::make_shared<const Extents>(extents), 1}});
        const auto part = [&](const at::Tensor& whole) {
            return whole.narrow(1, rank == 2 ? 400 : 400 * (rank > 0), extents[rank]);
        };
        auto own = made;
        own.x = part(made.x);

        const auto found = outcome_of(own, [&](const at::Tensor& x, const FusedBlock& block) {
            return to_local(fused_block_by_kernels(from_local(x, spec), block));
        });

        EXPECT_TRUE(tensors_near(found.result, part(expected.result), 1e-12));
        EXPECT_TRUE(tensors_near(found.x_gradient, part(expected.x_gradient), 1e-10));
    });
}

/// How far one gradient is from what is expected, as a share of the norm.
double distance_of(const at::Tensor& found, const at::Tensor& expected)
{
    return ((found.to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
}

/// The same weights and points in double precision, by the tiles of the host.
Outcome in_double(const BlockCase& made)
{
    auto wide = made;
    const auto widened = [](const at::Tensor& weight) {
        return weight.defined() ? weight.detach().to(at::kDouble) : weight;
    };
    wide.block.weights = made.block.weights.map(widened);
    wide.block.attend_weights = {widened(made.block.attend_weights[0])};
    wide.x = widened(made.x);
    return outcome_of(wide, [](const at::Tensor& x, const FusedBlock& block) { return fused_block(x, block); });
}

TEST(DeviceBlockSums, HaveEachGradientNearThatInDouble)
{
    for (const std::int64_t head_dim : {8, 20}) {
        auto made = make_case(head_dim, 3, at::kFloat);
        made.x = made.x.to(at::kBFloat16).to(at::kFloat);
        const auto expected = in_double(made);
        const auto single = outcome_of(
            made, [](const at::Tensor& x, const FusedBlock& block) { return fused_block_by_kernels(x, block); });
        auto half = made;
        half.x = made.x.to(at::kBFloat16);
        const auto rounded = outcome_of(half, [](const at::Tensor& x, const FusedBlock& block) {
            return fused_block_by_kernels(x, block).to(at::kFloat);
        });
        for (std::size_t i = 0; i < expected.weight_gradients.size(); ++i) {
            EXPECT_LT(distance_of(single.weight_gradients[i], expected.weight_gradients[i]), 1e-5) << "weight " << i;
            EXPECT_LT(distance_of(rounded.weight_gradients[i], expected.weight_gradients[i]), 0.03) << "weight " << i;
        }
    }
}

/// Points with temperatures of their own, and noise: every run draws the same.
BlockCase make_warm_case()
{
    auto made = make_case(8, 3, at::kFloat);
    const auto random = [](at::IntArrayRef sizes) { return at::randn(sizes).mul_(0.4).requires_grad_(); };
    made.block.shape.point_temperature = true;
    made.block.weights.project_fx = {};
    made.block.weights.temperature = at::full({3}, 0.6).requires_grad_();
    made.block.weights.temperature_hidden = {random({5, 8}), random({5})};
    made.block.weights.temperature_out = {random({1, 5}), random({1})};
    return made;
}

TEST(DeviceBlockSums, TakeTemperaturesOfPointsAndNoise)
{
    for (const bool noisy : {false, true}) {
        for (const bool keep : {true, false}) {
            const auto made = make_warm_case();
            const auto run = [&](bool by_kernels) {
                auto own = made;
                if (noisy) own.block.noise = std::make_shared<RowNoise>(7);
                const FusedOptions options{.keep_activations = keep, .tile_points = 400};
                return outcome_of(own, [&](const at::Tensor& x, const FusedBlock& block) {
                    return by_kernels ? fused_block_by_kernels(x, block, options) : fused_block(x, block);
                });
            };
            expect_near(run(true), run(false), 5e-5);
        }
    }
}

TEST(DeviceBlockSums, TakeOtherActivationsThanGelu)
{
    for (const auto* name : {"silu", "prelu"}) {
        auto made = make_case(8, 3, at::kDouble);
        made.block.shape.activation = find_activation(name);
        ASSERT_NE(made.block.shape.activation, nullptr);
        if (std::string(name) == "prelu")
            made.block.weights.activation = at::full({1}, 0.2, at::kDouble).requires_grad_();
        const auto expected =
            outcome_of(made, [](const at::Tensor& x, const FusedBlock& block) { return fused_block(x, block); });
        for (const bool keep : {true, false}) {
            const FusedOptions options{.keep_activations = keep, .tile_points = 400};
            expect_near(
                outcome_of(made, [&](const at::Tensor& x,
                                     const FusedBlock& block) { return fused_block_by_kernels(x, block, options); }),
                expected, 1e-10);
        }
    }
}

TEST(FusionObstacle, IsADeviceWithoutKernels)
{
    const auto made = make_case(4, 0, at::kFloat);
    EXPECT_EQ(fusion_obstacle(made.x, made.block), nullptr);
    EXPECT_STREQ(fusion_obstacle(made.x.to(at::kMeta), made.block), "its points are on a device without kernels");
}

/// Of the norm; of all weights' gradients at once, since some are nearly zero.
double distance(const Outcome& found, const Outcome& expected)
{
    const auto of = [](const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
        std::vector<at::Tensor> differences, values;
        for (std::size_t i = 0; i < a.size(); ++i) {
            differences.push_back((a[i].to(at::kDouble) - b[i].to(at::kDouble)).flatten());
            values.push_back(b[i].to(at::kDouble).flatten());
        }
        return (at::cat(differences).norm() / at::cat(values).norm()).item<double>();
    };
    return std::max({of({found.result}, {expected.result}), of({found.x_gradient}, {expected.x_gradient}),
                     of(found.weight_gradients, expected.weight_gradients)});
}

/// As on a device under autocast: points in half precision, weights in single precision.
Outcome attended(const BlockCase& made, at::ScalarType type, const FusedOptions& options = {})
{
    auto half = made;
    half.x = made.x.to(type);
    return outcome_of(half, [&](const at::Tensor& x, const FusedBlock& block) {
        return fused_block_by_kernels(x, block, options).to(at::kFloat);
    });
}

TEST(DeviceBlockInHalfPrecision, IsNearTheTilesOfTheHost)
{
    for (const std::int64_t head_dim : {8, 20, 120}) {
        for (const std::int64_t outputs : {0, 3}) {
            auto made = make_case(head_dim, outputs, at::kFloat);
            made.x = made.x.to(at::kBFloat16).to(at::kFloat);
            const auto expected =
                outcome_of(made, [](const at::Tensor& x, const FusedBlock& block) { return fused_block(x, block); });
            for (const bool keep : {true, false}) {
                const auto found = attended(made, at::kBFloat16, {.keep_activations = keep, .tile_points = 400});
                EXPECT_LT(distance(found, expected), 0.02) << head_dim << ' ' << outputs << ' ' << keep;
                EXPECT_GT(distance(found, expected), 1e-5);
                for (const auto& gradient : found.weight_gradients) EXPECT_EQ(gradient.scalar_type(), at::kFloat);
            }
            if (head_dim > 20) continue;  // sums of squares beyond the range of float16, which wants a scaled loss
            EXPECT_LT(distance(attended(made, at::kHalf), expected), 0.004) << head_dim << ' ' << outputs;
        }
    }
}

TEST(DeviceBlockInHalfPrecision, SumsTravelBetweenRanks)
{
    const auto made = make_case(8, 4, at::kFloat);
    const auto expected = attended(made, at::kBFloat16);
    for (const int num_ranks : {1, 2, 3}) {
        run_ranks(num_ranks, [&](const auto& mesh) {
            const std::vector<std::int64_t> all{400, 0, 201};
            auto extents = std::vector<std::int64_t>(all.begin(), all.begin() + num_ranks);
            extents.back() += 601 - std::accumulate(extents.begin(), extents.end(), std::int64_t{0});
            const auto spec = make_spec(mesh, {{Shard(1), std::make_shared<const Extents>(extents), 1}});
            const auto rank = mesh->coordinate(0),
                       first = std::accumulate(extents.begin(), extents.begin() + rank, std::int64_t{0});
            const auto part = [&](const at::Tensor& whole) { return whole.narrow(1, first, extents[rank]); };
            auto own = made;
            own.x = part(made.x).to(at::kBFloat16);

            auto found = outcome_of(own, [&](const at::Tensor& x, const FusedBlock& block) {
                return to_local(fused_block_by_kernels(from_local(x, spec), block)).to(at::kFloat);
            });

            auto of_part = expected;
            of_part.result = part(expected.result);
            of_part.x_gradient = part(expected.x_gradient);
            found.weight_gradients = of_part.weight_gradients;
            if (extents[rank] == 0) return;
            EXPECT_LT(distance(found, of_part), 0.01) << num_ranks;
        });
    }
}

}  // namespace
}  // namespace meshard
