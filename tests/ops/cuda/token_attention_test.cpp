// SPDX-License-Identifier: Apache-2.0
// Kernels of small tensors of a layer, attention among slices' tokens and folding of weights, run by the host from the
// source of the GPU's, against LibTorch's operators and autograd in double precision. Several warps are threads.
#include "ops/cuda/tile_kernels.h"
#include "ops/slices/token_attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <vector>

namespace meshard {
namespace {

/// The norm of the difference over that of the expected numbers.
double distance(const at::Tensor& found, const at::Tensor& expected)
{
    const auto wide = expected.detach().to(at::kDouble);
    return ((found.to(at::kDouble) - wide).norm() / wide.norm().clamp_min(1e-30)).item<double>();
}

struct TokenCase {
    std::int64_t samples, heads, count, dim;
    int warps;
};

class TokenAttentionKernel : public testing::TestWithParam<TokenCase> {};

TEST_P(TokenAttentionKernel, IsNearTheOperatorsInDouble)
{
    const auto [samples, heads, count, dim, warps] = GetParam();
    at::manual_seed(5);
    const auto tokens = at::randn({samples, heads, count, dim}) * 1.5,
               weight = at::randn({3 * dim, dim}) / std::sqrt(static_cast<double>(dim)),
               gradient = at::randn({samples, heads, count, dim});
    const auto wide = tokens.to(at::kDouble).requires_grad_(), wide_weight = weight.to(at::kDouble).requires_grad_();
    const auto expected = token_attention_by_operators(wide, wide_weight);
    const auto gradients = torch::autograd::grad({expected}, {wide, wide_weight}, {gradient.to(at::kDouble)});

    const HostExecutor executor{.form = {warps, 1, 2, 0}};
    const TokenAttention of{tokens.const_data_ptr<float>(),
                            weight.const_data_ptr<float>(),
                            static_cast<int>(samples * heads),
                            static_cast<int>(count),
                            static_cast<int>(dim),
                            static_cast<float>(1 / std::sqrt(static_cast<double>(dim)))};
    auto states = at::full_like(tokens, NAN), of_tokens = at::full_like(tokens, NAN),
         of_weight = at::full_like(weight, NAN);
    attend_tokens(executor, of, states.mutable_data_ptr<float>());
    attend_tokens_backward(executor, of,
                           {states.const_data_ptr<float>(), gradient.const_data_ptr<float>(),
                            of_tokens.mutable_data_ptr<float>(), of_weight.mutable_data_ptr<float>()});
    EXPECT_LT(distance(states, expected), 1e-5);
    EXPECT_LT(distance(of_tokens, gradients[0]), 1e-5);
    // One by one: queries, keys, values.
    for (std::int64_t third = 0; third < 3; ++third)
        EXPECT_LT(distance(of_weight.narrow(0, third * dim, dim), gradients[1].narrow(0, third * dim, dim)), 1e-5)
            << "third " << third;
}

// Sizes below, at and above multiples of 16, one token, one channel; more warps than groups of 16 x 16 numbers.
INSTANTIATE_TEST_SUITE_P(Shapes, TokenAttentionKernel,
                         testing::Values(TokenCase{1, 2, 64, 32, 1}, TokenCase{2, 3, 7, 24, 3},
                                         TokenCase{1, 1, 1, 8, 2}, TokenCase{1, 2, 33, 1, 2},
                                         TokenCase{1, 1, 96, 40, 4}, TokenCase{3, 1, 128, 16, 1}));

TEST(TokenAttentionKernels, WithoutSamplesGiveAZeroGradient)
{
    const HostExecutor executor;
    std::vector<float> weight(3 * 4 * 4, 1), of_weight(weight.size(), NAN);
    const TokenAttention of{nullptr, weight.data(), 0, 5, 4, 0.5F};
    attend_tokens(executor, of, nullptr);
    attend_tokens_backward(executor, of, {nullptr, nullptr, nullptr, of_weight.data()});
    for (const auto each : of_weight) EXPECT_EQ(each, 0);
}

/// Products of 37 outputs and `columns` inputs: two weights after one norm, one after another norm, and one without.
void expect_folded(at::ScalarType type, RowType row_type, std::int64_t columns, int warps, double limit)
{
    at::manual_seed(6);
    const auto wide = type == at::kDouble ? at::kDouble : at::kFloat;
    const auto draw = [&](at::IntArrayRef shape) { return at::randn(shape).to(wide); };
    const auto rows = std::int64_t{37};
    const auto scale = draw({columns}), shift = draw({columns}), other_scale = draw({columns}),
               other_shift = draw({columns});
    std::vector<at::Tensor> weights, biases;
    for (int i = 0; i < 4; ++i) {
        weights.push_back(draw({rows, columns}));
        biases.push_back(draw({rows}));
    }
    std::vector<at::Tensor> folded, folded_biases;
    FoldedWeights all{row_type, {}, 4};
    for (int i = 0; i < 4; ++i) {
        folded.push_back(at::full({rows, columns}, NAN, type));
        folded_biases.push_back(at::full({rows}, NAN, type));
        const auto& s = i < 2 ? scale : other_scale;
        const auto& b = i < 2 ? shift : other_shift;
        all.products[i] = {weights[i].const_data_ptr(),
                           i < 3 ? biases[i].const_data_ptr() : nullptr,
                           i < 3 ? s.const_data_ptr() : nullptr,
                           i < 3 ? b.const_data_ptr() : nullptr,
                           folded[i].mutable_data_ptr(),
                           i < 3 ? folded_biases[i].mutable_data_ptr() : nullptr,
                           rows,
                           columns};
    }
    const HostExecutor executor{.form = {warps, 1, 2, 0}};
    fold_weights(executor, all);
    for (int i = 0; i < 3; ++i) {
        const auto s = (i < 2 ? scale : other_scale).to(at::kDouble), b = (i < 2 ? shift : other_shift).to(at::kDouble);
        EXPECT_LT(distance(folded[i], weights[i].to(at::kDouble) * s), limit) << i;
        EXPECT_LT(distance(folded_biases[i], biases[i].to(at::kDouble) + at::mv(weights[i].to(at::kDouble), b)), limit)
            << i;
    }
    EXPECT_LT(distance(folded[3], weights[3]), limit);

    // Autograd finds the gradients of the parts from those of the folded ones.
    const auto g = draw({2 * rows, columns}), g_bias = draw({2 * rows});
    std::vector<at::Tensor> leaves;
    for (const auto& each : {weights[0], weights[1], scale, shift, weights[2], other_scale, other_shift})
        leaves.push_back(each.to(at::kDouble).clone().requires_grad_());
    const auto pair = at::cat({leaves[0], leaves[1]});
    const auto expected = torch::autograd::grad(
        {pair * leaves[2], at::mv(pair, leaves[3]), leaves[4] * leaves[5], at::mv(leaves[4], leaves[6])}, leaves,
        {g.to(at::kDouble), g_bias.to(at::kDouble), g.narrow(0, 0, rows).to(at::kDouble),
         g_bias.narrow(0, 0, rows).to(at::kDouble)});
    std::vector<at::Tensor> found;
    for (const auto& leaf : leaves) found.push_back(at::full_like(leaf, NAN, leaf.options().dtype(wide)).detach());
    const UnfoldedWeights back{row_type == RowType::Float64 ? RowType::Float64 : RowType::Float32,
                               {{g.const_data_ptr(),
                                 g_bias.const_data_ptr(),
                                 scale.const_data_ptr(),
                                 shift.const_data_ptr(),
                                 {weights[0].const_data_ptr(), weights[1].const_data_ptr()},
                                 {found[0].mutable_data_ptr(), found[1].mutable_data_ptr()},
                                 found[2].mutable_data_ptr(),
                                 found[3].mutable_data_ptr(),
                                 2,
                                 rows,
                                 columns},
                                {g.const_data_ptr(),
                                 g_bias.const_data_ptr(),
                                 other_scale.const_data_ptr(),
                                 other_shift.const_data_ptr(),
                                 {weights[2].const_data_ptr()},
                                 {found[4].mutable_data_ptr()},
                                 found[5].mutable_data_ptr(),
                                 found[6].mutable_data_ptr(),
                                 1,
                                 rows,
                                 columns}},
                               2};
    unfold_weights(executor, back);
    for (std::size_t i = 0; i < leaves.size(); ++i)
        EXPECT_LT(distance(found[i], expected[i]), wide == at::kDouble ? 1e-13 : 2e-6) << "gradient " << i;
}

TEST(WeightFolding, IsNearOperatorsInDouble)
{
    for (const std::int64_t columns : {1, 8, 19}) {
        for (const int warps : {1, 3, 9}) {
            expect_folded(at::kDouble, RowType::Float64, columns, warps, 1e-14);
            expect_folded(at::kFloat, RowType::Float32, columns, warps, 1e-6);
            expect_folded(at::kBFloat16, RowType::Bfloat16, columns, warps, 4e-3);
            expect_folded(at::kHalf, RowType::Float16, columns, warps, 5e-4);
        }
    }
}

}  // namespace
}  // namespace meshard
