// SPDX-License-Identifier: Apache-2.0
// Attention as models call it: from TorchScript, through LibTorch's modules, in the types and with the dropout of
// training.
#include "partition/error.h"
#include "sharding/tensor/exact_mode.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/rule_table.h"
#include "tests/support/expect_error.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/rule_property.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/jit.h>
#include <torch/nn/modules/activation.h>
#include <torch/script.h>

#include <cmath>

namespace meshard {
namespace {

/// The tensor cut along `dim`, its values those of `whole` on every rank.
at::Tensor cut(const at::Tensor& whole, std::int64_t dim, const Extents& extents,
               const std::shared_ptr<const DeviceMesh>& mesh, std::int64_t blocks = 1)
{
    const AxisLayout layout{Shard(dim), std::make_shared<Extents>(extents), blocks};
    return from_local(narrow_to_shard(whole, layout, mesh->coordinate(0)).clone(), make_spec(mesh, {layout}));
}

TEST(AttentionInModels, RunsFromTorchScript)
{
    Draw draw(1);
    const auto x = draw.values({2, 3, 11, 4});
    const auto module = torch::jit::compile(R"(
        def attend(x, causal: bool):
            return torch.scaled_dot_product_attention(x * 2, x, x + 1, is_causal=causal)
    )");
    for (const bool causal : {false, true}) {
        auto leaf = x.clone().requires_grad_();
        const auto expected = module->run_method("attend", leaf, causal).toTensor();
        expected.square().sum().backward();

        run_ranks(2, [&](const auto& mesh) {
            for (int call = 0; call < 4; ++call) {  // the executor rewrites the graph after the first calls
                const auto part = cut(x, 2, {8, 3}, mesh).requires_grad_();
                const auto output = module->run_method("attend", part, causal).toTensor();
                output.square().sum().backward();
                EXPECT_TRUE(tensors_near(full_tensor(output), expected, 1e-11));
                EXPECT_TRUE(tensors_near(full_tensor(part.grad()), leaf.grad(), 1e-11));
            }
        });
    }
}

TEST(AttentionInModels, RunsInsideTheMultiheadAttentionModule)
{
    Draw draw(2);
    const auto x = draw.values({9, 2, 8});  // (N, B, C)
    torch::nn::MultiheadAttention module(torch::nn::MultiheadAttentionOptions(8, 2));
    module->to(at::kDouble);
    auto leaf = x.clone().requires_grad_();
    const auto expected = std::get<0>(module->forward(leaf, leaf, leaf));
    expected.square().sum().backward();

    run_ranks(3, [&](const auto& mesh) {
        set_gather_policy(GatherPolicy::Silent);
        const auto part = cut(x, 0, {5, 0, 4}, mesh).requires_grad_();
        const auto output = std::get<0>(module->forward(part, part, part));
        EXPECT_TRUE(tensors_near(full_tensor(output), expected, 1e-11));
        const auto gradient = torch::autograd::grad({output.square().sum()}, {part})[0];
        EXPECT_TRUE(tensors_near(full_tensor(gradient), leaf.grad(), 1e-11));
    });
}

TEST(AttentionInModels, RunsInTheFusedEncoderLayer)
{
    Draw draw(3);
    const auto x = draw.values({2, 9, 8}, at::kFloat);
    const auto w_in = draw.values({24, 8}, at::kFloat), w_out = draw.values({8, 8}, at::kFloat),
               b_in = draw.values({24}, at::kFloat), b = draw.values({8}, at::kFloat),
               w = draw.values({8, 8}, at::kFloat);
    const auto layer = [&](const at::Tensor& t) {
        return at::_transformer_encoder_layer_fwd(t, 8, 2, w_in, b_in, w_out, b, false, false, 1e-5, b, b, b, b, w, b,
                                                  w, b);
    };
    const auto attention = [&](const at::Tensor& t) {
        return std::get<0>(at::_native_multi_head_attention(t, t, t, 8, 2, w_in, b_in, w_out, b, {}, false));
    };
    const torch::NoGradGuard no_grad;

    run_ranks(2, [&](const auto& mesh) {
        const torch::NoGradGuard no_grad_here;
        set_gather_policy(GatherPolicy::Silent);
        EXPECT_TRUE(tensors_near(full_tensor(layer(cut(x, 1, {7, 2}, mesh))), layer(x), 1e-6));
        EXPECT_TRUE(tensors_near(full_tensor(attention(cut(x, 1, {7, 2}, mesh))), attention(x), 1e-6));
    });
}

TEST(AttentionInModels, RunsWithoutGradientsAndInInferenceMode)
{
    Draw draw(4);
    const auto x = draw.values({1, 2, 10, 4});
    const auto expected = at::scaled_dot_product_attention(x, x, x);

    run_ranks(2, [&](const auto& mesh) {
        const c10::InferenceMode inference;
        const auto part = cut(x, 2, {6, 4}, mesh);
        mesh->counter().reset();
        EXPECT_TRUE(tensors_near(full_tensor(at::scaled_dot_product_attention(part, part, part)), expected, 1e-11));
        EXPECT_EQ(mesh->counter().calls()[0].operation, "ring_shift");
    });
}

TEST(AttentionInModels, KeepsToItsTypes)
{
    Draw draw(5);
    for (const auto& [type, tolerance] : {std::pair{at::kFloat, 2e-6}, {at::kBFloat16, 2e-2}, {at::kHalf, 2e-3}}) {
        std::vector<at::Tensor> whole, exact;
        for (int i = 0; i < 3; ++i) {
            whole.push_back(draw.values({2, 4, 700, 16}, type));
            exact.push_back(whole.back().to(at::kDouble).requires_grad_());
        }
        const auto expected = at::scaled_dot_product_attention(exact[0], exact[1], exact[2]);
        expected.square().sum().backward();

        run_ranks(3, [&, type = type, tolerance = tolerance](const auto& mesh) {
            std::vector<at::Tensor> parts;
            for (const auto& tensor : whole) parts.push_back(cut(tensor, 2, {600, 30, 70}, mesh).requires_grad_());
            const auto output = at::scaled_dot_product_attention(parts[0], parts[1], parts[2]);
            output.square().sum().backward();
            EXPECT_EQ(output.scalar_type(), type);
            EXPECT_TRUE(tensors_near(full_tensor(output).to(at::kDouble), expected, tolerance)) << type;
            for (int i = 0; i < 3; ++i) {
                EXPECT_EQ(parts[i].grad().scalar_type(), type);
                EXPECT_TRUE(tensors_near(full_tensor(parts[i].grad()).to(at::kDouble), exact[i].grad(), tolerance))
                    << type << i;
            }
        });
    }
}

TEST(AttentionInModels, TakesFlattenedBatches)
{
    Draw draw(6);
    const auto x = draw.values({12, 2, 8, 4});  // two blocks of six batches, or of four rows
    const auto expected = at::scaled_dot_product_attention(x, x, x);

    run_ranks(2, [&](const auto& mesh) {
        for (const std::int64_t dim : {0, 2}) {
            const auto part = cut(x, dim, dim == 0 ? Extents{5, 1} : Extents{1, 3}, mesh, 2);
            EXPECT_TRUE(tensors_near(full_tensor(at::scaled_dot_product_attention(part, part, part)), expected, 1e-11))
                << dim;
            const auto whole = from_local(x, mesh, {Replicate()});
            EXPECT_TRUE(tensors_near(full_tensor(at::scaled_dot_product_attention(whole, part, part)), expected, 1e-11))
                << dim;
        }
    });
}

TEST(AttentionInModels, DropsTheWeightsThatThePlainOneDrops)
{
    Draw draw(8);
    for (const bool causal : {false, true}) {
        std::vector<at::Tensor> leaves;
        for (int i = 0; i < 3; ++i) leaves.push_back(draw.values({2, 3, 40, 4}).requires_grad_());
        at::manual_seed(7);
        const auto expected = at::scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], {}, 0.25, causal);
        expected.square().sum().backward();

        for (const int dim : {0, 1, 2}) {
            at::manual_seed(7);
            run_ranks(3, [&](const auto& mesh) {
                std::vector<at::Tensor> parts;
                for (const auto& x : leaves) {
                    const auto n = x.size(dim);
                    parts.push_back(cut(x.detach(), dim,
                                        n == 2   ? Extents{1, 0, 1}
                                        : n == 3 ? Extents{1, 2, 0}
                                                 : Extents{28, 5, 7},
                                        mesh)
                                        .requires_grad_());
                }
                const auto output = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.25, causal);
                output.square().sum().backward();
                EXPECT_TRUE(tensors_near(full_tensor(output), expected, 1e-11)) << dim;
                for (int i = 0; i < 3; ++i)
                    EXPECT_TRUE(tensors_near(full_tensor(parts[i].grad()), leaves[i].grad(), 1e-11)) << dim << i;
            });
        }
    }
}

/// What attention that is all alike leaves of ones after dropout: the share of weights kept, by row.
std::vector<at::Tensor> kept_shares(const std::shared_ptr<const DeviceMesh>& mesh, const Extents& extents)
{
    const auto flat = at::zeros({1, 2, 3000, 1}, at::kDouble),
               ones = at::ones({1, 2, 3000, 1}, at::kDouble);  // single precision adds 3,000 weights to 1e-5 or worse
    const auto queries = cut(flat, 2, extents, mesh), keys = cut(flat, 2, extents, mesh),
               values = cut(ones, 2, extents, mesh).requires_grad_();
    const auto output = at::scaled_dot_product_attention(queries, keys, values, {}, 0.25);
    output.backward(output.detach());
    return {full_tensor(output).detach(), full_tensor(values.grad())};
}

TEST(AttentionInModels, DropsTheSameWeightsForAnyPartitionOfLongSequences)
{
    std::vector<at::Tensor> expected;
    at::manual_seed(7);
    run_ranks(1, [&](const auto& mesh) { expected = kept_shares(mesh, {3000}); });
    EXPECT_NEAR(expected[0].mean().item<double>(), 1, 1e-3);
    EXPECT_NEAR(expected[0].std().item<double>(), std::sqrt(0.25 / 0.75 / 3000), 5e-4);
    EXPECT_FALSE(at::allclose(expected[0][0][0], expected[0][0][1]));

    at::manual_seed(7);
    run_ranks(3, [&](const auto& mesh) {
        const auto found = kept_shares(mesh, {1700, 0, 1300});
        EXPECT_TRUE(tensors_near(found[0], expected[0], 1e-12));
        EXPECT_TRUE(tensors_near(found[1], expected[1], 1e-12));
    });
}

TEST(AttentionInModels, HasTheSameBitsForAnyPartitionInExactMode)
{
    Draw draw(9);
    const auto x = draw.values({1, 2, 300, 8}, at::kFloat);
    std::vector<at::Tensor> expected;
    const auto results = [&](const auto& mesh, const Extents& extents) {
        const auto part = cut(x, 2, extents, mesh).requires_grad_();
        const auto output = at::scaled_dot_product_attention(part, part * 2, part);
        output.backward(output.detach());
        return std::vector{full_tensor(output).detach(), full_tensor(part.grad())};
    };
    set_exact_mode(true);
    run_ranks(1, [&](const auto& mesh) { expected = results(mesh, {300}); });

    run_ranks(3, [&](const auto& mesh) {
        const auto found = results(mesh, {180, 0, 120});
        EXPECT_TRUE(at::equal(found[0], expected[0]));
        EXPECT_TRUE(at::equal(found[1], expected[1]));
    });
    set_exact_mode(false);
}

TEST(AttentionInModels, SaysWhatIsWrong)
{
    run_ranks(1, [](const auto& mesh) {
        const auto x = from_local(at::ones({1, 2, 5, 3}), mesh, {Shard(2)});
        const auto narrow = from_local(at::ones({1, 2, 5, 2}), mesh, {Shard(2)});
        EXPECT_TRUE(throws_with<InvalidInput>("must share their last dimension",
                                              [&] { at::scaled_dot_product_attention(x, narrow, x); }));
        EXPECT_TRUE(throws_with<InvalidInput>(
            "not both", [&] { at::scaled_dot_product_attention(x, x, x, at::ones({5, 5}), 0.0, true); }));
        EXPECT_TRUE(throws_with<InvalidInput>("does not broadcast",
                                              [&] { at::scaled_dot_product_attention(x, x, x, at::ones({5, 4})); }));
    });
}

}  // namespace
}  // namespace meshard
