// SPDX-License-Identifier: Apache-2.0
// Every rule against the plain operator: values, and gradients of every input, over random cuts.
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/rule_table.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <optional>
#include <random>

namespace meshard {
namespace {

using Function = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

struct Case {
    const char* name;
    std::vector<std::vector<std::int64_t>> shapes;  ///< of the inputs
    std::vector<std::vector<std::int64_t>>
        cut_dims;  ///< per input the dimensions that may be cut, -1 for whole; one choice index for all inputs
    Function function;
};

at::Tensor drawn_values(c10::IntArrayRef shape, unsigned seed)
{
    return at::arange(1, c10::multiply_integers(shape) + 1, at::kDouble)
        .mul(0.7310585 + seed)
        .sin()
        .mul(1.5)
        .view(shape)
        .contiguous();
}

/// The same rows for every input that is cut in the same choice, so that operands fit.
Extents random_extents(std::int64_t n, std::int64_t ranks, std::mt19937& random)
{
    Extents extents(ranks, 0);
    for (std::int64_t i = 0; i < n; ++i) ++extents[random() % ranks];
    return extents;
}

void check(const Case& item, int ranks)
{
    run_ranks(ranks, [&](const auto& mesh) {
        for (std::size_t choice = 0; choice < item.cut_dims[0].size(); ++choice) {
            for (unsigned seed = 0; seed < 4; ++seed) {
                std::mt19937 random(seed * 31 + choice);
                std::vector<at::Tensor> plain, sharded;
                std::map<std::int64_t, Extents> extents;  // one cut for each length
                for (std::size_t i = 0; i < item.shapes.size(); ++i) {
                    auto x = drawn_values(item.shapes[i], static_cast<unsigned>(i));
                    plain.push_back(x.clone().requires_grad_());
                    const auto dim = item.cut_dims[i][choice];
                    AxisLayout layout;
                    if (dim >= 0) {
                        const auto n = item.shapes[i][dim];
                        if (!extents.contains(n)) extents[n] = random_extents(n, ranks, random);
                        layout = {Shard(dim), std::make_shared<Extents>(extents[n]), 1};
                        x = narrow_to_shard(x, layout, mesh->coordinate(0)).clone();
                    }
                    sharded.push_back(from_local(x, make_spec(mesh, {layout})).requires_grad_());
                }
                const auto where =
                    std::string(item.name) + ", choice " + std::to_string(choice) + ", seed " + std::to_string(seed);

                const auto expected = item.function(plain);
                const auto found = item.function(sharded);
                EXPECT_TRUE(tensors_near(full_tensor(found).detach(), expected.detach(), 1e-13)) << where;

                const auto weights = drawn_values(expected.sizes(), 9);
                (expected * weights).sum().backward();
                (found * weights).sum().backward();
                for (std::size_t i = 0; i < plain.size(); ++i) {
                    const auto gradient = sharded[i].grad();
                    EXPECT_TRUE(
                        tensors_near(gradient.defined() ? full_tensor(gradient) : at::Tensor(), plain[i].grad(), 1e-12))
                        << where << ", gradient " << i;
                }
            }
        }
    });
}

const std::vector<Case>& cases()
{
    static const std::vector<Case> all{
        {"add", {{4, 7, 3}, {4, 7, 3}}, {{0, 1, 2, 1, -1}, {0, 1, 2, -1, 1}}, [](auto& x) { return x[0] + x[1]; }},
        {"broadcast",
         {{4, 7, 3}, {7, 1}},
         {{0, 1, 2, 1, 1}, {-1, 0, -1, -1, 0}},
         [](auto& x) { return x[0] * x[1] - x[1]; }},
        {"differently cut operands",
         {{4, 7, 3}, {4, 7, 3}},
         {{0, 1, 2}, {1, 2, 0}},
         [](auto& x) { return x[0] / (x[1] + 3); }},
        {"activations",
         {{5, 4}},
         {{0, 1, -1}},
         [](auto& x) { return at::gelu(x[0]) + at::silu(x[0]) * at::tanh(x[0]) - at::sigmoid(x[0]).log(); }},
        {"scalars",
         {{5, 4}},
         {{0, 1}},
         [](auto& x) { return (2 - x[0]) * 3 / 7 + x[0].pow(2) - x[0].clamp(-0.5, 0.5); }},
        {"choices",
         {{5, 4}, {5, 4}},
         {{0, 1, 0}, {0, 1, -1}},
         [](auto& x) { return at::where(x[0] > x[1], x[0] * 2, x[1]).masked_fill(x[0] > 1, 0.25); }},
        {"in place",
         {{5, 4}, {4}},
         {{0, 1, 0}, {-1, 0, -1}},
         [](auto& x) {
             auto y = x[0] * 1;
             y.mul_(x[1]).add_(x[1], 2).sigmoid_();
             return y;
         }},
        {"types", {{5, 4}}, {{0, 1}}, [](auto& x) { return x[0].to(at::kFloat).to(at::kDouble); }},
        {"linear",
         {{2, 7, 3}, {5, 3}, {5}},
         {{0, 1, 2, -1}, {-1, -1, 1, 0}, {-1, -1, -1, 0}},
         [](auto& x) { return at::linear(x[0], x[1], x[2]); }},
        {"linear of rows",
         {{7, 3}, {5, 3}, {5}},
         {{0, 1, -1, 0}, {-1, 1, 0, 0}, {-1, -1, 0, -1}},
         [](auto& x) { return at::linear(x[0], x[1], x[2]); }},
        {"contraction over rows",
         {{2, 7, 3}, {2, 7, 4}},
         {{0, 1, 2, -1, 1, -1}, {0, 1, -1, 2, -1, 1}},
         [](auto& x) { return at::matmul(x[0].transpose(1, 2), x[1]); }},
        {"product with heads",
         {{2, 7, 3, 4}, {5, 4}},
         {{0, 1, 2, 3}, {-1, -1, -1, 1}},
         [](auto& x) { return at::linear(x[0], x[1]); }},
        {"outer", {{6}, {7}}, {{0, -1, 0}, {-1, 0, 0}}, [](auto& x) { return x[0].unsqueeze(1) * x[1]; }},
        {"matrix and vector",
         {{6, 5}, {5}},
         {{0, 1, -1, 0}, {-1, 0, 0, 0}},
         [](auto& x) { return at::matmul(x[0], x[1]); }},
        {"einsum",
         {{2, 7, 3}, {2, 7, 4}},
         {{0, 1, 2}, {0, 1, -1}},
         [](auto& x) { return at::einsum("bnk,bnc->bkc", {x[0], x[1]}); }},
        {"sums",
         {{4, 7, 3}},
         {{0, 1, 2}},
         [](auto& x) { return x[0].sum(1) + x[0].sum(at::IntArrayRef{0, 2}).sum() + x[0].sum(1, true).squeeze(1); }},
        {"mean",
         {{4, 7, 3}},
         {{0, 1, 2}},
         [](auto& x) { return x[0].mean(1) * x[0].mean() + x[0].mean(at::IntArrayRef{0, 1}, true).squeeze(0); }},
        {"pending sums stay linear",
         {{7, 3}, {7, 3}},
         {{0, 0}, {0, -1}},
         [](auto& x) { return (x[0].sum(0) * 2 - x[1].sum(0)).neg() / 3 + x[0].mean(0) + 1; }},
        {"pending sums turn nonlinear",
         {{7, 3}},
         {{0, 1}},
         [](auto& x) { return x[0].sum(0).exp() * x[0] + x[0].sum(0).pow(2); }},
        {"softmax over whole dimensions",
         {{4, 7, 3}},
         {{0, 1}},
         [](auto& x) { return at::softmax(x[0], 2) + at::log_softmax(x[0], -1); }},
        {"layer norm",
         {{4, 7, 3}, {3}, {3}},
         {{0, 1, -1}, {-1, -1, -1}, {-1, -1, -1}},
         [](auto& x) { return at::layer_norm(x[0], {3}, x[1], x[2]); }},
        {"losses",
         {{7, 3}, {7, 3}},
         {{0, 1, 0, -1}, {0, 1, -1, 0}},
         [](auto& x) {
             return at::mse_loss(x[0], x[1]) + at::huber_loss(x[0], x[1]) * 2 +
                    at::smooth_l1_loss(x[0], x[1], at::Reduction::Sum);
         }},
        {"loss without reduction",
         {{7, 3}, {7, 3}},
         {{0, 1}, {0, 1}},
         [](auto& x) { return at::mse_loss(x[0], x[1], at::Reduction::None); }},
        {"transpositions",
         {{4, 7, 3}},
         {{0, 1, 2}},
         [](auto& x) { return x[0].permute({2, 0, 1}).transpose(0, -1).contiguous() * 2; }},
        {"heads split off and joined",
         {{2, 7, 6}},
         {{0, 1}},
         [](auto& x) { return x[0].view({2, 7, 2, 3}).permute({0, 2, 1, 3}).transpose(1, 2).reshape({2, 7, 6}); }},
        {"batch flattened into rows",
         {{3, 7, 4}, {4, 4}},
         {{0, 1}, {-1, -1}},
         [](auto& x) { return (at::mm(x[0].reshape({-1, 4}), x[1]).tanh() * 2).view({3, 7, 4}); }},
        {"rows flattened into channels",
         {{7, 2, 3}},
         {{0}},
         [](auto& x) { return x[0].flatten().view({7, 6}).view({7, 3, 2}); }},
        {"a single row",
         {{3, 1, 6}, {6, 6}},
         {{1, 0}, {-1, -1}},
         [](auto& x) {
             return at::linear(x[0], x[1])
                        .view({3, 1, 2, 3})
                        .permute({0, 2, 1, 3})
                        .tanh()
                        .transpose(1, 2)
                        .reshape({3, 1, 6}) +
                    x[0];
         }},
        {"a single row of a single batch",
         {{1, 1, 6}, {6, 6}},
         {{1, 0}, {-1, -1}},
         [](auto& x) {
             return at::linear(x[0], x[1])
                        .view({1, 1, 2, 3})
                        .permute({0, 2, 1, 3})
                        .tanh()
                        .transpose(1, 2)
                        .reshape({1, 1, 6}) +
                    x[0];
         }},
        {"squeeze",
         {{4, 1, 3}},
         {{0, 2}},
         [](auto& x) { return x[0].squeeze(1).unsqueeze(0).unsqueeze(-1).squeeze() * 2; }},
        {"expand", {{4, 1, 3}}, {{0, 2}}, [](auto& x) { return x[0].expand({2, 4, 5, 3}).sum(2); }},
        {"slices of whole dimensions",
         {{5, 8}},
         {{0}},
         [](auto& x) { return x[0].slice(1, 1, 7, 2) + x[0].narrow(1, 2, 3) * x[0].select(1, 4).unsqueeze(1); }},
        {"chunks",
         {{5, 6}},
         {{0}},
         [](auto& x) {
             auto c = x[0].chunk(3, -1);
             auto u = x[0].unbind(1);
             return c[0] * c[2] + u[1].unsqueeze(1) + x[0].split(2, 1)[1];
         }},
        {"cat", {{5, 2}, {5, 3}}, {{0, 0, -1}, {0, -1, 0}}, [](auto& x) { return at::cat({x[0], x[1], x[0]}, 1); }},
        {"stack", {{5, 2}, {5, 2}}, {{0, 1, 0}, {0, 1, -1}}, [](auto& x) { return at::stack({x[0], x[1]}, 1) * 2; }},
        {"like",
         {{5, 2}},
         {{0, 1}},
         [](auto& x) {
             return at::ones_like(x[0]) * x[0] + at::zeros_like(x[0]) + at::full_like(x[0], 2) + x[0].new_ones({5, 2});
         }},
    };
    return all;
}

class Rules : public ::testing::TestWithParam<std::size_t> {};

TEST_P(Rules, EqualThePlainOperatorWithGradients)
{
    for (const int ranks : {1, 2, 3, 5}) check(cases()[GetParam()], ranks);
}

INSTANTIATE_TEST_SUITE_P(Families, Rules, ::testing::Range<std::size_t>(0, cases().size()), [](const auto& info) {
    std::string name = cases()[info.param].name;
    for (auto& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
    return name;
});

TEST(Rules, KeepTheAxesOfAGridApart)
{
    run_ranks({2, 3}, {"data", "domain"}, [](const auto& mesh) {
        const auto whole = drawn_values({5, 7, 4}, 0), weight = drawn_values({5, 4, 3}, 1);
        const auto plain = at::layer_norm(at::gelu(at::bmm(whole, weight)), {3});
        const auto x = redistribute(from_local(whole, replicated_spec(mesh)), {Shard(0), Shard(1)});

        const auto y = at::layer_norm(at::gelu(at::bmm(x, weight)), {3});

        EXPECT_TRUE(tensors_near(full_tensor(y), plain, 1e-13));
        EXPECT_NEAR(y.mean().template item<double>(), plain.mean().template item<double>(), 1e-14);
        EXPECT_TRUE(tensors_near(full_tensor(y.sum(0)), plain.sum(0), 1e-13));
    });
}

TEST(Rules, ReduceEachPendingSumOnce)
{
    run_ranks(2, [](const auto& mesh) {
        const auto x = from_local(at::ones({3, 2}, at::kDouble), mesh, {Shard(0)});
        mesh->counter().reset();

        const auto total = x.sum(0) * 2 + x.mean(0);
        EXPECT_EQ(mesh->counter().num_calls(), 0) << "linear operators leave sums pending";
        const auto a = total.exp(), b = total.sin();

        EXPECT_EQ(mesh->counter().num_calls(), 1);
    });
}

/// One number, a line and a grid, with dimensions that they have and others: the plain operator's result, or an error
/// on every rank where the plain operator throws one.
TEST(Rules, AnswerAsThePlainOperatorForEveryDimension)
{
    struct OfDimension {
        const char* name;
        std::function<at::Tensor(const at::Tensor&, std::int64_t dim)> function;
    };
    const std::vector<OfDimension> operators{
        {"unsqueeze", [](auto& x, auto dim) { return x.unsqueeze(dim); }},
        {"unbind", [](auto& x, auto dim) { return x.unbind(dim).front(); }},
        {"unfold", [](auto& x, auto dim) { return x.unfold(dim, 1, 1); }},
        {"diagonal", [](auto& x, auto dim) { return x.diagonal(0, 0, dim); }},
        {"select", [](auto& x, auto dim) { return x.select(dim, 0); }},
        {"repeat_interleave", [](auto& x, auto dim) { return x.repeat_interleave(2, dim); }},
        {"rot90", [](auto& x, auto dim) { return x.rot90(1, {0, dim}); }},
        {"mean", [](auto& x, auto dim) { return x.mean(dim); }},
        {"amax", [](auto& x, auto dim) { return x.amax(dim); }},
        {"prod", [](auto& x, auto dim) { return x.prod(dim); }},
        {"any", [](auto& x, auto dim) { return x.any(dim).to(at::kDouble); }},
        {"norm", [](auto& x, auto dim) { return at::linalg_vector_norm(x, 2, dim); }},
        {"logsumexp", [](auto& x, auto dim) { return x.logsumexp(dim); }},
        {"softmax", [](auto& x, auto dim) { return x.softmax(dim); }},
        {"softmax of whole numbers", [](auto& x, auto dim) { return x.to(at::kLong).softmax(dim); }},
        {"t", [](auto& x, auto dim) { return x.unsqueeze(dim).t(); }},
    };
    const auto result = [](const OfDimension& op, const at::Tensor& x, std::int64_t dim) -> std::optional<at::Tensor> {
        try {
            return op.function(x, dim);
        } catch (const c10::Error&) {
            return std::nullopt;
        }
    };
    for (const auto& shape : std::vector<std::vector<std::int64_t>>{{}, {3}, {3, 4}}) {
        const auto whole = drawn_values(shape, 0);
        run_ranks(2, [&](const auto& mesh) {
            const auto replicated = from_local(whole, replicated_spec(mesh));
            const auto x = shape.empty() ? replicated : redistribute(replicated, {Shard(0)});
            for (const auto& op : operators) {
                for (const std::int64_t dim : {-5, -3, -1, 0, 1, 2, 3, 1000}) {
                    const auto expected = result(op, whole, dim), found = result(op, x, dim);
                    ASSERT_EQ(found.has_value(), expected.has_value())
                        << op.name << ", " << dim << " of " << shape.size();
                    if (expected) {
                        EXPECT_TRUE(tensors_near(full_tensor(*found), *expected, 1e-14)) << op.name << ", " << dim;
                    }
                }
            }
        });
    }
}

TEST(Rules, CompareWholeTensorsOnEveryRank)
{
    run_ranks(2, [](const auto& mesh) {
        const auto whole = at::arange(10, at::kDouble).view({5, 2});
        auto other = whole.clone();
        other[4][1] += 1;
        for (const Extents& extents : {Extents{2, 3}, Extents{0, 5}}) {
            const auto layout = AxisLayout{Shard(0), std::make_shared<const Extents>(extents), 1};
            const auto cut = [&](const at::Tensor& tensor) {
                return redistribute(from_local(tensor, replicated_spec(mesh)), make_spec(mesh, {layout}));
            };
            EXPECT_TRUE(at::equal(cut(whole), cut(whole)));
            EXPECT_TRUE(at::equal(cut(whole), whole.clone()));
            EXPECT_FALSE(at::equal(cut(whole), cut(other)));
            EXPECT_FALSE(at::equal(other, cut(whole)));
        }
    });
}

TEST(Rules, ViewOrdinaryTensorsInInferenceMode)
{
    run_ranks(2, [](const auto& mesh) {
        const auto x = redistribute(from_local(drawn_values({5, 2}, 0), replicated_spec(mesh)), {Shard(0)});
        const auto whole = full_tensor(x);
        const c10::InferenceMode inference;
        EXPECT_TRUE(tensors_near(full_tensor(x.detach().narrow(0, 1, 3)), whole.narrow(0, 1, 3), 0));
        EXPECT_FALSE(x.unsqueeze(0).is_inference());
        EXPECT_TRUE((x * 2).is_inference());
        EXPECT_TRUE(tensors_near(full_tensor((x * 2).unsqueeze(0)), whole.mul(2).unsqueeze(0), 0));
    });
}

}  // namespace
}  // namespace meshard
