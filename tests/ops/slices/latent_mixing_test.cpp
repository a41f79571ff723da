// SPDX-License-Identifier: Apache-2.0
#include "ops/slices/latent_mixing.h"
#include "partition/error.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/live_bytes.h"
#include "tests/support/run_ranks.h"
#include "tests/support/test_device.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace meshard {
namespace {

struct Operands {
    at::Tensor keys, queries, values;

    std::vector<at::Tensor> all() const { return {keys, queries, values}; }
    template <class F>
    Operands map(const F& f) const
    {
        return {f(keys), f(queries), f(values)};
    }
};

/// Logits of every third latent are `offset` higher, those of others as much lower.
Operands operands(std::int64_t B, std::int64_t N, std::int64_t H, std::int64_t M, std::int64_t D, double offset = 0)
{
    at::manual_seed(static_cast<std::uint64_t>(N + M + D));
    const auto keys = at::randn({B, N, H, D}, at::kDouble), queries = at::randn({1, H, M, D}, at::kDouble);
    if (offset > 0) {
        keys.select(3, 0).fill_(1);
        queries.select(3, 0).fill_(-offset).slice(2, 0, M, 3).fill_(offset);
    }
    return {keys, queries, at::randn({B, N, H, D}, at::kDouble)};
}

/// The result, and gradients of all operands where the result's is its sine.
template <class Mix>
std::vector<at::Tensor> with_gradients(const Operands& of, const Mix& mix)
{
    const auto leaves = of.map([](const at::Tensor& tensor) { return tensor.detach().requires_grad_(); });
    const auto result = mix(leaves.keys, leaves.queries, leaves.values);
    auto found = torch::autograd::grad({result}, leaves.all(), {result.detach().sin()});
    found.insert(found.begin(), result.detach());
    return found;
}

void expect_like_operators(const Operands& of, at::ScalarType type, double limit)
{
    const auto rounded = of.map([&](const at::Tensor& tensor) { return tensor.to(type).to(at::kDouble); });
    const auto expected = with_gradients(rounded, mix_through_latents_by_operators),
               found = with_gradients(
                   of.map([&](const at::Tensor& tensor) { return tensor.to(type).to(device_of_tests()); }),
                   mix_through_latents);
    for (std::size_t i = 0; i < found.size(); ++i) {
        ASSERT_EQ(found[i].scalar_type(), type);
        const auto error = (found[i].cpu().to(at::kDouble) - expected[i]).norm();
        EXPECT_LE(error.item<double>(), limit * (expected[i].norm().item<double>() + 1e-2))
            << "tensor " << i << " of keys " << of.keys.sizes() << ", queries " << of.queries.sizes() << ", "
            << at::toString(type);
    }
}

class LatentMixing : public testing::Test {
protected:
    void SetUp() override
    {
        if (!has_device_of_tests()) GTEST_SKIP() << "this process sees no device of type " << device_of_tests();
    }
};

TEST_F(LatentMixing, EqualsItsOperatorsWithGradients)
{
    for (const auto& [N, M, D] : {std::array<std::int64_t, 3>{1, 7, 8},
                                  {15, 1, 24},
                                  {33, 96, 12},
                                  {1500, 64, 16},
                                  {40, 9, 128},
                                  {20, 5, 136}}) {
        expect_like_operators(operands(2, N, 2, M, D), at::kDouble, 1e-11);
        expect_like_operators(operands(2, N, 2, M, D), at::kFloat, 2e-4);
        if (D <= 128) expect_like_operators(operands(1, N, 2, M, D), at::kBFloat16, 6e-2);
    }
    expect_like_operators(operands(2, 700, 2, 9, 16, 300), at::kDouble, 1e-10);
    expect_like_operators(operands(2, 700, 2, 9, 16, 300), at::kFloat, 2e-3);
}

TEST_F(LatentMixing, OfNoPointsHasNoGradientOfQueries)
{
    const auto of = operands(2, 0, 2, 3, 8).map([](const at::Tensor& tensor) {
        return tensor.to(at::kFloat).to(device_of_tests());
    });

    const auto found = with_gradients(of, mix_through_latents);

    EXPECT_EQ(found[0].sizes(), of.keys.sizes());
    EXPECT_TRUE(tensors_near(found[2].cpu(), at::zeros({1, 2, 3, 8}), 0));
}

TEST_F(LatentMixing, EqualsSerialForEveryCut)
{
    const auto type = device_of_tests().is_cpu() ? at::kDouble : at::kFloat;
    const double limit = type == at::kDouble ? 1e-12 : 2e-4;
    const auto whole = operands(4, 41, 4, 7, 8).map([&](const at::Tensor& tensor) { return tensor.to(type); });
    const auto expected = with_gradients(whole, mix_through_latents_by_operators);
    for (const int ranks : {2, 3}) {
        for (const std::int64_t dim : {0, 1, 2}) {
            for (const bool has_empty : {false, true}) {
                run_ranks(ranks, [&](const auto& mesh) {
                    auto extents = even_extents(whole.keys.size(dim), ranks);
                    if (has_empty) {
                        extents[1] += extents[0];
                        extents[0] = 0;
                    }
                    const auto layout = AxisLayout{Shard(dim), std::make_shared<Extents>(extents), 1};
                    const auto cut = [&](const at::Tensor& x) {
                        return from_local(narrow_to_shard(x, layout, mesh->coordinate(0)).clone().to(device_of_tests()),
                                          make_spec(mesh, {layout}));
                    };

                    const auto found = with_gradients(
                        {cut(whole.keys), whole.queries.to(device_of_tests()), cut(whole.values)}, mix_through_latents);

                    for (std::size_t i = 0; i < found.size(); ++i)
                        EXPECT_TRUE(tensors_near(full_tensor(found[i]).cpu(), expected[i], limit)) << "tensor " << i;
                });
            }
        }
    }
}

TEST_F(LatentMixing, SendsOneMessageEachWay)
{
    const std::int64_t B = 2, H = 3, M = 4, D = 8;
    run_ranks(3, [&](const auto& mesh) {
        const auto of = operands(B, 2 * mesh->coordinate(0), H, M, D).map([](const at::Tensor& tensor) {
            return tensor.to(at::kFloat).to(device_of_tests());
        });
        const auto cut = [&](const at::Tensor& x) { return from_local(x, mesh, {Shard(1)}).requires_grad_(); };
        const auto keys = cut(of.keys), values = cut(of.values);
        mesh->counter().reset();

        const auto result = mix_through_latents(keys, of.queries, values);
        ASSERT_EQ(mesh->counter().num_calls(), 1);
        EXPECT_EQ(mesh->counter().total_bytes(), 2 * 4 * B * H * M * (D + 1)) << "those of the two others";

        mesh->counter().reset();
        result.backward(result.detach());
        ASSERT_EQ(mesh->counter().num_calls(), 1);
        EXPECT_EQ(mesh->counter().total_bytes(), 4 * B * H * M * D);
    });
}

TEST_F(LatentMixing, HoldsNoWeights)
{
    if (!device_of_tests().is_cpu()) GTEST_SKIP() << "the memory of the CPU is counted";
    const std::int64_t N = 40'000, H = 2, M = 64, D = 4;
    const auto of = operands(1, N, H, M, D).map([](const at::Tensor& tensor) { return tensor.to(at::kFloat); });
    const LiveBytes bytes;

    with_gradients(of, mix_through_latents);

    EXPECT_LT(bytes.peak(), N * H * M * 4 / 2);
}

TEST_F(LatentMixing, HasNoSecondDerivativeAndSaysWhichShapesItExpects)
{
    const auto of = operands(1, 5, 2, 3, 8);
    const auto keys = of.keys.requires_grad_();
    const auto result = mix_through_latents(keys, of.queries, of.values);
    EXPECT_TRUE(throws_with<InvalidInput>("mix_through_latents: has no second derivative", [&] {
        torch::autograd::grad({result.sum()}, {keys}, {}, /*retain_graph=*/true, /*create_graph=*/true);
    }));
    EXPECT_TRUE(
        throws_with<InvalidInput>("keys [1, 5, 2, 8], queries [1, 2, 3, 8] and values [1, 4, 2, 8], expected",
                                  [&] { mix_through_latents(of.keys, of.queries, of.values.narrow(1, 0, 4)); }));
}

}  // namespace
}  // namespace meshard
