// SPDX-License-Identifier: Apache-2.0
// Ranks may keep different tensors alive: a log of gradients on rank 0, a view in a debugger. Nothing that leads to a
// message may depend on it.
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/rule_table.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <random>

namespace meshard {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Keeps what goes in and out of a node of the graph.
struct KeepingHook : torch::autograd::FunctionPostHook {
    explicit KeepingHook(Tensors& kept) : kept(kept) {}
    Tensors operator()(const Tensors& outputs, const Tensors& inputs) override
    {
        kept.insert(kept.end(), inputs.begin(), inputs.end());
        kept.insert(kept.end(), outputs.begin(), outputs.end());
        return outputs;
    }
    Tensors& kept;
};

/// What one rank holds on to, by draws of its own.
class Keeper {
public:
    Keeper(std::uint64_t seed, double share) : engine_(seed), keeps_(share) {}

    void may_keep(const at::Tensor& tensor)
    {
        if (keeps_(engine_)) kept_.push_back(tensor);
    }

    void may_watch(const at::Tensor& tensor)
    {
        if (!tensor.requires_grad()) return;
        if (keeps_(engine_)) tensor.register_hook([this](const at::Tensor& gradient) { kept_.push_back(gradient); });
        if (tensor.grad_fn() && keeps_(engine_)) tensor.grad_fn()->add_post_hook(std::make_unique<KeepingHook>(kept_));
    }

    /// Parts, too: looked at by one rank alone.
    void may_look_at_part(const at::Tensor& tensor)
    {
        if (is_sharded(tensor) && keeps_(engine_)) kept_.push_back(to_local(tensor));
    }

private:
    std::mt19937_64 engine_;
    std::bernoulli_distribution keeps_;
    Tensors kept_;
};

/// x, y: (n, m); s: (m, m); w: (m, m), plain on every rank; b: (m).
struct Leaves {
    at::Tensor x, y, s, w, b;

    Tensors all() const { return {x, y, s, w, b}; }
};

/// A random program of views, writes in place, sums and products, the same for a seed; then its gradients.
Tensors run_program(const Leaves& leaves, std::uint64_t seed, Keeper& keeper)
{
    std::mt19937_64 engine(seed);
    const auto draw = [&](std::int64_t low, std::int64_t high) {
        return std::uniform_int_distribution<std::int64_t>(low, high)(engine);
    };
    Tensors rows{leaves.x, leaves.y * 1, leaves.x * leaves.y}, squares{leaves.s, leaves.w, leaves.w * 1};
    const auto any = [&](const Tensors& tensors) {
        return tensors[draw(0, static_cast<std::int64_t>(tensors.size()) - 1)];
    };
    for (int step = 0; step < 14; ++step) {
        const auto a = any(rows), b = any(rows);
        const auto p = any(squares), q = any(squares);
        const auto n = a.size(0), m = a.size(1);
        const auto cut = draw(1, n - 1);
        at::Tensor made;
        switch (draw(0, 15)) {
        case 0:
            made = a + b;
            break;
        case 1:
            made = at::matmul(a, p) * 0.3;
            break;
        case 2:
            made = a - a.mean(0);
            break;
        case 3:
            made = at::cat({a.slice(0, cut), b.slice(0, 0, cut)});
            break;
        case 4:
            made = a.view({n * m}).view({n, m}).sin();
            break;
        case 5:
            made = a * b.sum(0) * 0.1 + leaves.b;
            break;
        case 6:
            made = at::tanh(a.t()).t() + b;
            break;
        case 7: {  // a base and views of it, written to
            made = a * 1;
            const auto part = made.slice(0, 0, cut), row = made.select(0, n - 1), columns = made.slice(1, 0, 2);
            keeper.may_keep(part);
            keeper.may_keep(row);
            keeper.may_keep(columns);
            made.add_(b);
            if (draw(0, 1)) made.slice(1, 0, 1).mul_(b.slice(1, 0, 1));
            break;
        }
        case 8: {  // whole, then written to with parts
            made = leaves.b.expand({n, m}) * 1;
            keeper.may_keep(made.slice(1, 0, 2));
            keeper.may_look_at_part(made);
            made.add_(b);
            made.mul_(0.5);
            break;
        }
        case 9: {  // pending, looked at, written to
            auto sum = at::matmul(a.t(), b) * 0.1;
            keeper.may_keep(sum.slice(0, 0, 1));
            keeper.may_look_at_part(sum);
            if (draw(0, 1)) keeper.may_keep(sum.view({m * m}));
            sum.add_(p);
            if (draw(0, 1)) sum.tanh_();
            squares.push_back(sum);
            break;
        }
        case 10:
            squares.push_back(p + q * 0.5);
            break;
        case 11:
            squares.push_back(at::matmul(a.t(), a).softmax(-1) + p);
            break;
        case 12: {
            const auto parts = a.unbind(0);
            keeper.may_keep(parts[0]);
            made = a + (parts[0] * parts[n - 1]);
            break;
        }
        case 13: {
            made = at::zeros_like(a);
            keeper.may_keep(made.view({n * m}));
            made.copy_(b);
            break;
        }
        case 14:
            squares.push_back((p * 1).mul_(q).clamp_(-3, 3));
            break;
        default:
            made = at::where(a > b, a, b * 0.5);
            break;
        }
        auto& pool = made.defined() ? rows : squares;
        if (made.defined()) pool.push_back(made);
        keeper.may_watch(pool.back());
        keeper.may_keep(pool.back());
    }
    Tensors roots;
    for (const auto& tensor : {rows.back(), rows[rows.size() / 2], squares.back(), squares[squares.size() / 2]})
        roots.push_back((tensor * tensor).mean());
    const auto loss = roots[0] + roots[1] + roots[2] + roots[3];
    keeper.may_watch(loss);
    Tensors inputs;
    for (const auto& leaf : leaves.all()) {
        keeper.may_watch(leaf);
        inputs.push_back(leaf);
    }
    Tensors results =
        torch::autograd::grad({loss}, inputs, {}, /*retain_graph=*/true, /*create_graph=*/false, /*allow_unused=*/true);
    torch::autograd::backward(
        {loss}, {},
        /*retain_graph=*/true);  // the other way in which gradients are gathered: kept by their leaves, twice
    torch::autograd::backward({roots[0] + roots[2]}, {}, /*retain_graph=*/true);
    for (const auto& leaf : leaves.all()) results.push_back(leaf.grad());
    results.push_back(rows.back());
    results.push_back(squares.back());
    return results;
}

/// A hang shows as an error of the ranks' transport, another number of messages by itself.
TEST(KeptTensors, ChangeNeitherGradientsNorMessages)
{
    constexpr std::int64_t n = 10, m = 4;
    for (std::uint64_t seed = 1; seed <= 120; ++seed) {
        const auto values = [&](c10::IntArrayRef shape, std::uint64_t which) {
            const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed * 10 + which);
            return at::randn(shape, generator, at::TensorOptions(at::kDouble)).mul_(0.7);
        };
        const Tensors start{values({n, m}, 0), values({n, m}, 1), values({m, m}, 2), values({m, m}, 3), values({m}, 4)};
        const auto leaf = [](const at::Tensor& tensor) { return tensor.detach().clone().requires_grad_(); };
        Keeper none(0, 0);
        const auto expected =
            run_program({leaf(start[0]), leaf(start[1]), leaf(start[2]), leaf(start[3]), leaf(start[4])}, seed, none);

        run_ranks(2, [&](const auto& mesh) {
            set_gather_policy(GatherPolicy::Silent);
            const auto spec = make_spec(mesh, {AxisLayout{Shard(0), std::make_shared<Extents>(Extents{7, 3}), 1}});
            const auto rows = [&](const at::Tensor& whole) {
                return from_local(own_part(whole, *spec).clone(), spec).requires_grad_();
            };
            const auto everywhere = [&](const at::Tensor& whole) {
                return from_local(whole.clone(), mesh, {Replicate()}).requires_grad_();
            };
            const Leaves leaves{rows(start[0]), seed % 2 ? rows(start[1]) : everywhere(start[1]), everywhere(start[2]),
                                leaf(start[3]), seed % 3 ? leaf(start[4]) : everywhere(start[4])};
            Keeper keeper(seed * 100 + static_cast<std::uint64_t>(mesh->coordinate(0)), 0.4);
            const auto before = mesh->counter().num_calls();

            const auto found = run_program(leaves, seed, keeper);

            const auto messages = mesh->counter().num_calls() - before;
            for (const auto& other : mesh->all().all_gather_integers(std::vector<std::int64_t>{messages}))
                EXPECT_EQ(other[0], messages) << "seed " << seed;
            for (std::size_t i = 0; i < expected.size(); ++i) {
                const auto whole = found[i].defined() ? full_tensor(found[i]) : found[i];
                EXPECT_TRUE(tensors_near(whole, expected[i], 1e-10))
                    << "seed " << seed << ", rank " << mesh->coordinate(0) << ", result " << i;
            }
            set_gather_policy(GatherPolicy::Warn);
        });
        if (HasFailure()) return;
    }
}

TEST(KeptTensors, ALogOfGradientsOnOneRankLeavesThemAsTheyAre)
{
    run_ranks(2, [](const auto& mesh) {
        const auto whole = at::arange(40, at::kDouble).view({10, 4});
        const auto spec = make_spec(mesh, {AxisLayout{Shard(0), std::make_shared<Extents>(Extents{7, 3}), 1}});
        for (const bool plain : {false, true}) {
            const auto p = (plain ? at::eye(4, at::kDouble) : from_local(at::eye(4, at::kDouble), mesh, {Replicate()}))
                               .requires_grad_();
            const auto w = p * 1;
            const auto y = at::matmul(from_local(own_part(whole, *spec).clone(), spec), w), v = w.sin();
            Tensors kept;
            if (mesh->coordinate(0) == 0) v.grad_fn()->add_post_hook(std::make_unique<KeepingHook>(kept));

            const auto gradient = torch::autograd::grad({y.sum(), v.sum()}, {p}, {})[0];

            const auto expected = at::eye(4, at::kDouble).cos() + whole.sum(0).unsqueeze(1).expand({4, 4});
            EXPECT_TRUE(tensors_near(full_tensor(gradient), expected, 1e-14))
                << "rank " << mesh->coordinate(0) << (plain ? ", plain" : "");
        }
    });
}

TEST(KeptTensors, AViewOnOneRankLeavesAWriteInPlaceAsItIs)
{
    run_ranks(2, [](const auto& mesh) {
        const auto spec = make_spec(mesh, {AxisLayout{Shard(0), std::make_shared<Extents>(Extents{7, 3}), 1}});
        const auto whole = at::arange(40, at::kDouble).view({10, 4});
        const auto total = from_local(at::zeros({10, 4}, at::kDouble), mesh, {Replicate()}) + 0;
        auto preview = total.slice(1, 0, 2);
        if (mesh->coordinate(0) == 1) preview = at::Tensor();
        const auto part = mesh->coordinate(0) == 0 ? to_local(total) : at::Tensor();

        total.add_(from_local(own_part(whole, *spec).clone(), spec));

        EXPECT_EQ(to_string(*spec_of(total)), "Replicate on domain");
        EXPECT_TRUE(at::equal(to_local(total), whole));
        if (preview.defined()) {
            EXPECT_TRUE(at::equal(to_local(preview), whole.slice(1, 0, 2)));
        }
        if (part.defined()) {
            EXPECT_TRUE(at::equal(part, whole)) << "what to_local gave looks at the same memory";
        }
    });
}

TEST(KeptTensors, LoopsOverRowsLeaveTheTensorCut)
{
    run_ranks(2, [](const auto& mesh) {
        set_gather_policy(GatherPolicy::Silent);
        const auto spec = make_spec(mesh, {AxisLayout{Shard(0), std::make_shared<Extents>(Extents{7, 3}), 1}});
        const auto whole = at::arange(40, at::kDouble).view({10, 4});
        const auto x = from_local(own_part(whole, *spec).clone(), spec);

        auto rows = x.unbind(0);
        for (std::int64_t i = 0; i < 10; ++i) EXPECT_TRUE(at::equal(full_tensor(rows[i]), whole[i])) << i;
        EXPECT_EQ(to_string(*spec_of(x)), "Shard(0) of 7+3 on domain");
        EXPECT_EQ(local_of(x).size(0), mesh->coordinate(0) == 0 ? 7 : 3);

        rows[8].fill_(-1);  // a write to a row is one to the tensor
        auto changed = whole.clone();
        changed[8].fill_(-1);
        EXPECT_TRUE(at::equal(full_tensor(x), changed));
        x.mul_(2);  // and the other way round
        EXPECT_TRUE(at::equal(full_tensor(rows[2]), changed[2] * 2));
        EXPECT_TRUE(at::equal(full_tensor(rows[8]), changed[8] * 2));
        set_gather_policy(GatherPolicy::Warn);
    });
}

}  // namespace
}  // namespace meshard
