// SPDX-License-Identifier: Apache-2.0
#include "ops/slices/slice_ops.h"
#include "partition/error.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace meshard {
namespace {

at::Tensor wavy_values(c10::IntArrayRef shape, double seed)
{
    return at::arange(1, c10::multiply_integers(shape) + 1, at::kDouble).mul(0.61 + seed).cos().view(shape);
}

/// The formula of the header, written with einsum.
at::Tensor slice_reference(const at::Tensor& w, const at::Tensor& f, double epsilon)
{
    return at::einsum("bnhs,bnhd->bhsd", {w, f}) / (w.sum(1).unsqueeze(-1) + epsilon);
}

TEST(SliceTokens, EqualsItsFormulaWithGradients)
{
    auto w = at::softmax(wavy_values({2, 9, 3, 4}, 0), -1).requires_grad_(),
         f = wavy_values({2, 9, 3, 5}, 1).requires_grad_();
    auto w2 = w.detach().clone().requires_grad_(), f2 = f.detach().clone().requires_grad_();
    const auto factors = wavy_values({2, 3, 4, 5}, 2);

    const auto tokens = slice_tokens(w, f, 1e-2);
    const auto expected = slice_reference(w2, f2, 1e-2);
    (tokens * factors).sum().backward();
    (expected * factors).sum().backward();

    EXPECT_TRUE(tensors_near(tokens.detach(), expected.detach(), 1e-14));
    EXPECT_TRUE(tensors_near(w.grad(), w2.grad(), 1e-13));
    EXPECT_TRUE(tensors_near(f.grad(), f2.grad(), 1e-13));
}

TEST(DesliceTokens, EqualsItsFormulaWithGradients)
{
    auto w = wavy_values({2, 9, 3, 4}, 0).requires_grad_(), t = wavy_values({2, 3, 4, 5}, 1).requires_grad_();
    auto w2 = w.detach().clone().requires_grad_(), t2 = t.detach().clone().requires_grad_();
    const auto factors = wavy_values({2, 9, 3, 5}, 2);

    const auto y = deslice_tokens(w, t);
    const auto expected = at::einsum("bnhs,bhsd->bnhd", {w2, t2});
    (y * factors).sum().backward();
    (expected * factors).sum().backward();

    EXPECT_TRUE(tensors_near(y.detach(), expected.detach(), 1e-14));
    EXPECT_TRUE(tensors_near(w.grad(), w2.grad(), 1e-13));
    EXPECT_TRUE(tensors_near(t.grad(), t2.grad(), 1e-13));
}

TEST(SliceTokens, SendsOneMessageEachWay)
{
    const std::int64_t B = 2, N = 20, H = 3, S = 4, D = 5;
    run_ranks(3, [&](const auto& mesh) {
        const Extents extents{15, 0, 5};
        const auto layout = AxisLayout{Shard(1), std::make_shared<Extents>(extents), 1};
        const auto cut = [&](const at::Tensor& x) {
            return from_local(narrow_to_shard(x, layout, mesh->coordinate(0)).to(at::kFloat), make_spec(mesh, {layout}))
                .requires_grad_();
        };
        const auto w = cut(wavy_values({B, N, H, S}, 0)), f = cut(wavy_values({B, N, H, D}, 1));
        mesh->counter().reset();

        const auto y = deslice_tokens(w, slice_tokens(w, f, 1e-2).tanh());
        ASSERT_EQ(mesh->counter().num_calls(), 1);
        EXPECT_EQ(mesh->counter().total_bytes(), 4 * B * H * S * (D + 1));

        mesh->counter().reset();
        y.backward(y.detach());
        ASSERT_EQ(mesh->counter().num_calls(), 1);
        EXPECT_EQ(mesh->counter().total_bytes(), 4 * B * H * S * D);
    });
}

TEST(SliceTokens, EqualsSerialForEveryCut)
{
    for (const int ranks : {1, 2, 3, 4}) {
        for (const std::int64_t dim : {0, 1, 2}) {
            run_ranks(ranks, [&](const auto& mesh) {
                const std::vector<std::int64_t> lengths{4, 11, 4};
                auto extents = even_extents(lengths[dim], ranks);
                if (ranks > 1) {  // uneven, one empty
                    extents[1] += extents[0];
                    extents[0] = 0;
                }
                const auto layout = AxisLayout{Shard(dim), std::make_shared<Extents>(extents), 1};
                const auto w = at::softmax(wavy_values({4, 11, 4, 3}, 0), -1), f = wavy_values({4, 11, 4, 2}, 1);
                const auto cut = [&](const at::Tensor& x) {
                    return from_local(narrow_to_shard(x, layout, mesh->coordinate(0)).clone(),
                                      make_spec(mesh, {layout}))
                        .requires_grad_();
                };
                auto ws = cut(w), fs = cut(f), wp = w.clone().requires_grad_(), fp = f.clone().requires_grad_();

                const auto found = deslice_tokens(ws, slice_tokens(ws, fs, 1e-2).sin());
                const auto expected = deslice_tokens(wp, slice_tokens(wp, fp, 1e-2).sin());
                found.pow(2).sum().backward();
                expected.pow(2).sum().backward();

                EXPECT_TRUE(tensors_near(full_tensor(found).detach(), expected.detach(), 1e-13));
                EXPECT_TRUE(tensors_near(full_tensor(ws.grad()), wp.grad(), 1e-12));
                EXPECT_TRUE(tensors_near(full_tensor(fs.grad()), fp.grad(), 1e-12));
            });
        }
    }
}

TEST(SliceTokens, OfOnePointMayBeCutAlongSlices)
{
    const auto w = wavy_values({1, 1, 1, 4}, 0), f = wavy_values({1, 1, 1, 5}, 1);
    run_ranks(3, [&](const auto& mesh) {
        const bool is_second = mesh->coordinate(0) == 1;
        const auto weights = from_local(w.narrow(3, 0, is_second ? 4 : 0), mesh, {Shard(3)});
        const auto features = from_local(f.narrow(1, 0, is_second ? 1 : 0), mesh, {Shard(1)});

        const auto tokens = slice_tokens(weights, features, 1e-2);

        EXPECT_TRUE(tensors_near(full_tensor(tokens), slice_reference(w, f, 1e-2), 1e-14));
        EXPECT_TRUE(tensors_near(full_tensor(deslice_tokens(weights, tokens)),
                                 deslice_tokens(w, slice_reference(w, f, 1e-2)), 1e-14));
    });
}

TEST(SliceTokens, SaysWhichShapesItExpects)
{
    EXPECT_THROW(slice_tokens(at::ones({2, 9, 3, 4}), at::ones({2, 8, 3, 5}), 1e-2), InvalidInput);
    EXPECT_THROW(deslice_tokens(at::ones({2, 9, 3, 4}), at::ones({2, 3, 5, 5})), InvalidInput);
}

}  // namespace
}  // namespace meshard
