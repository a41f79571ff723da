// SPDX-License-Identifier: Apache-2.0
// How many kernels an attention block asks of a device, on the stand-in accelerator, which counts them.
#include "ops/fused/fused_block.h"
#include "ops/fused/streamed_blocks.h"
#include "ops/slices/latent_mixing.h"
#include "ops/slices/token_attention.h"
#include "tests/support/random_block.h"
#include "tests/support/standin/standin.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

namespace meshard {
namespace {

constexpr std::int64_t kHeads = 2, kHeadDim = 8, kChannels = kHeads * kHeadDim;

const at::Device kDevice(c10::kPrivateUse1, 0);

at::Tensor there(const at::Tensor& weight)
{
    return weight.defined() ? weight.detach().to(kDevice).requires_grad_() : weight;
}

FusedBlock block_there()
{
    auto block = random_block(
        {.channels = kChannels, .heads = kHeads, .head_dim = kHeadDim, .slices = 8, .hidden = kChannels, .outputs = 0},
        at::kFloat, 0.1);
    block.weights = block.weights.map(there);
    block.attend = [](const at::Tensor& tokens, const std::vector<at::Tensor>& weights) {
        return token_attention(tokens, weights[0]);
    };
    block.attend_weights = {there(at::randn({3 * kHeadDim, kHeadDim}))};
    block.epsilon = 1e-5;
    return block;
}

/// Kernels of forward and backward together, by name.
std::map<std::string, std::int64_t> launches_of(std::int64_t num_points, at::ScalarType type, bool keep)
{
    at::manual_seed(3);
    const auto block = block_there();
    const auto x = at::randn({1, num_points, kChannels}).to(type).to(kDevice).requires_grad_();
    loaded_standin()->reset_counters(0);
    const auto result = fused_block(x, block, {.keep_activations = keep});
    result.backward(at::ones_like(result));
    return loaded_standin()->counters(0).launched;
}

TEST(DeviceLaunches, AreFewAndAsManyForAnyNumberOfPointsAndThreads)
{
    if (!loaded_standin()) GTEST_SKIP() << "only the stand-in accelerator counts what it is asked to do";
    for (const auto type : {at::kFloat, at::kBFloat16}) {
        for (const bool keep : {true, false}) {
            SCOPED_TRACE(std::string(at::toString(type)) + (keep ? ", stored" : ", recomputed"));
            const auto few = launches_of(1000, type, keep);
            std::int64_t total = 0;
            for (const auto& [name, number] : few) total += number;
            EXPECT_GT(total, 20);
            EXPECT_LE(total, 60);
            EXPECT_EQ(launches_of(100'000, type, keep), few);
            const auto threads = at::get_num_threads();
            at::set_num_threads(16);
            EXPECT_EQ(launches_of(1000, type, keep), few);
            at::set_num_threads(threads);
        }
    }
}

TEST(DeviceLaunches, OfLatentsAreFewAndAsManyForAnyNumberOfPoints)
{
    if (!loaded_standin()) GTEST_SKIP() << "only the stand-in accelerator counts what it is asked to do";
    const auto launches = [](std::int64_t num_points, std::int64_t latents) {
        const auto x = there(at::randn({1, num_points, kHeads, kHeadDim})),
                   queries = there(at::randn({1, kHeads, latents, kHeadDim}));
        loaded_standin()->reset_counters(0);
        const auto result = mix_through_latents(x, queries, x);
        result.backward(at::ones_like(result));
        return loaded_standin()->counters(0).launched;
    };
    for (const std::int64_t latents : {8, 80}) {
        const auto few = launches(100, latents);
        std::int64_t total = 0;
        for (const auto& [name, number] : few) total += number;
        EXPECT_EQ(few.at("meshard::kernel"), latents == 8 ? 8 : 9);
        EXPECT_LE(total, 40);
        EXPECT_EQ(launches(3000, latents), few);
    }
}

/// Passes over the points, products and kernels of ours, of a model of eight layers, streamed or with all that backward
/// needs kept.
std::int64_t passes_of_model(bool is_streamed, std::int64_t tile_points)
{
    at::manual_seed(3);
    StreamedModel model;
    model.mlp = {there(at::randn({kChannels, 3})),
                 there(at::randn({kChannels})),
                 there(at::randn({kChannels, kChannels})),
                 there(at::randn({kChannels})),
                 {}};
    for (int l = 0; l < 8; ++l) model.blocks.push_back(block_there());
    model.tile_points = tile_points;
    const auto points = at::randn({1, 1000, 3}).to(kDevice);
    loaded_standin()->reset_counters(0);
    at::Tensor x;
    if (is_streamed) {
        x = streamed_blocks(points, model);
    } else {
        x = fused_mlp(points, model.mlp, {});
        for (const auto& block : model.blocks) x = fused_block(x, block);
    }
    x.backward(at::ones_like(x));
    const auto launched = loaded_standin()->counters(0).launched;
    std::int64_t passes = 0;
    for (const auto* name : {"aten::mm", "aten::addmm", "meshard::kernel"}) passes += launched.at(name);
    return passes;
}

TEST(DeviceLaunches, OfAStreamedModelAreAtMostTwoAndAHalfTimesThoseOfAStoredOne)
{
    if (!loaded_standin()) GTEST_SKIP() << "only the stand-in accelerator counts what it is asked to do";
    const auto stored = passes_of_model(false, 0);
    EXPECT_GT(stored, 8 * 20);
    EXPECT_LE(2 * passes_of_model(true, 0), 5 * stored);
    EXPECT_LE(2 * passes_of_model(true, 250), 4 * 5 * stored);  // four tiles
}

}  // namespace
}  // namespace meshard
