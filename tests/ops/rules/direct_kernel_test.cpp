// SPDX-License-Identifier: Apache-2.0
// Kernels without boxes against the rules in whose place they stand: a call that is observed goes to the rule.
#include "ops/rules/pointwise_rule.h"
#include "sharding/tensor/direct_kernel.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <tuple>
#include <utility>
#include <vector>

namespace meshard {
namespace {

using DirectCall = std::function<std::vector<at::Tensor>(const at::Tensor&)>;

class IgnoreCalls : public RuleObserver {
public:
    IgnoreCalls() { set_rule_observer(this); }
    ~IgnoreCalls() override { set_rule_observer(nullptr); }
    void called(const RuleEvent&) override {}
    void refused(const std::string&, const std::string&) override {}
};

std::vector<at::Tensor> three(const std::tuple<at::Tensor, at::Tensor, at::Tensor>& results)
{
    return {std::get<0>(results), std::get<1>(results), std::get<2>(results)};
}

/// On a tensor (7, 4, 6); matrices on its first matrix of each row.
std::vector<std::pair<const char*, DirectCall>> direct_calls()
{
    const auto rows = [](const at::Tensor& x) { return x.select(1, 0).contiguous(); };
    const auto weight = at::arange(18.0).view({6, 3}) / 10, line = at::arange(6.0) / 7;
    return {
        {"binary",
         [](const at::Tensor& x) {
             return std::vector{x + x, x - x * 2, x * x, x / (x + 9), x + at::ones({}), x + at::ones({4, 6})};
         }},
        {"unary",
         [](const at::Tensor& x) {
             return std::vector{x.neg(),  x.exp(),     x.abs().sqrt(), x.sin(),     x.pow(2),
                                x.tanh(), x.sigmoid(), x.relu(),       at::silu(x), at::gelu(x)};
         }},
        {"gradients",
         [](const at::Tensor& x) {
             return std::vector{at::gelu_backward(x, x), at::silu_backward(x, x), at::threshold_backward(x, x, 0),
                                at::tanh_backward(x, x)};
         }},
        {"not contiguous",
         [](const at::Tensor& x) {
             return std::vector{x.transpose(0, 2) + 1, x.permute({1, 0, 2}).exp(),
                                x.transpose(1, 2) * x.transpose(1, 2)};
         }},
        {"pending",
         [](const at::Tensor& x) {
             return std::vector{x.sum(0) + x.sum(0), x.sum(0).exp(), x.sum(0) * 2,
                                x.sum(c10::IntArrayRef{0, 1}).detach()};
         }},
        {"in place",
         [](const at::Tensor& x) {
             auto y = x.clone(), base = x.clone();
             y.add_(x).mul_(2);
             base.narrow(2, 1, 2).add_(1);
             base.view({7, 24}).mul_(3);
             return std::vector{y, base};
         }},
        {"sums",
         [](const at::Tensor& x) {
             return std::vector{at::sum(x, c10::IntArrayRef{2}),
                                at::sum(x, c10::IntArrayRef{1}, true),
                                at::sum(x, c10::IntArrayRef{0}),
                                at::sum(x, c10::IntArrayRef{0, 2}),
                                at::sum(x, c10::IntArrayRef{1, 2}),
                                at::sum(x, c10::IntArrayRef{0, 1, 2}, true),
                                at::sum(x, c10::IntArrayRef{-1}, false, at::kDouble)};
         }},
        {"views",
         [](const at::Tensor& x) {
             return std::vector{x.view({7, 24}),   x.view({-1, 4, 2, 3}), x.view({28, 6}), x.view({7, 4, 6, 1}),
                                x.transpose(0, 1), x.transpose(-1, 1),    x.detach()};
         }},
        {"parts",
         [](const at::Tensor& x) {
             return std::vector{x.slice(0, 1, 4),    x.slice(1, 1, 3), x.slice(2, 0, 6, 2),
                                x.slice(-1, -3, 99), x.slice(2, 5, 2), x.select(0, 2),
                                x.select(1, -1),     x.select(2, 5),   x.slice(1, 0, 4, 3).select(2, 1)};
         }},
        {"gradients of parts",
         [](const at::Tensor& x) {
             return std::vector{
                 at::slice_backward(x, {7, 4, 9}, 2, 1, 7, 1), at::slice_backward(x, {7, 8, 6}, 1, 0, 8, 2),
                 at::slice_backward(x, {12, 4, 6}, 0, 5, 12, 1), at::slice_backward(x.sum(0), {4, 9}, -1, 1, 7, 1)};
         }},
        {"joins",
         [](const at::Tensor& x) {
             return std::vector{at::cat({x, x * 2}, 0),
                                at::cat({x, x * 2}, 1),
                                at::cat({x, x * 2, x}, -1),
                                at::cat({x, x.slice(2, 0, 2)}, 2),
                                at::cat({x, x.sum() * at::ones({7, 4, 1})}, 2),
                                at::cat({x.sum(0), x.sum(0)}, 1),
                                at::cat({x, x.to(at::kDouble)}, 1)};
         }},
        {"softmax",
         [](const at::Tensor& x) {
             return std::vector{x.softmax(2), x.softmax(0), x.log_softmax(1),
                                at::_softmax_backward_data(x, x.softmax(2), 2, x.scalar_type())};
         }},
        {"layer_norm", [=](const at::Tensor& x) { return three(at::native_layer_norm(x, {6}, line, line, 1e-5)); }},
        {"layer_norm_backward",
         [=](const at::Tensor& x) {
             const auto [y, mean, inverse] = at::native_layer_norm(x, {6}, line, line, 1e-5);
             return three(at::native_layer_norm_backward(x, x, {6}, mean, inverse, line, line, {true, true, true}));
         }},
        {"products",
         [=](const at::Tensor& x) {
             return std::vector{at::mm(rows(x), weight), at::addmm(weight[0], rows(x), weight),
                                at::mm(rows(x).t(), rows(x)), at::mm(rows(x), rows(x).t())};
         }},
        {"batches",
         [=](const at::Tensor& x) {
             return std::vector{at::bmm(x, x.transpose(1, 2)), at::bmm(x, weight.expand({7, 6, 3}))};
         }},
    };
}

void expect_same(const char* name, const std::vector<at::Tensor>& direct, const std::vector<at::Tensor>& by_rule)
{
    ASSERT_EQ(direct.size(), by_rule.size()) << name;
    for (std::size_t k = 0; k < direct.size(); ++k) {
        ASSERT_TRUE(*spec_of(direct[k]) == *spec_of(by_rule[k]))
            << name << " " << k << ": " << to_string(*spec_of(direct[k])) << ", by the rule "
            << to_string(*spec_of(by_rule[k]));
        EXPECT_EQ(direct[k].sizes(), by_rule[k].sizes()) << name << " " << k;
        EXPECT_EQ(direct[k].strides(), by_rule[k].strides()) << name << " " << k;
        EXPECT_TRUE(at::equal(local_of(direct[k]), local_of(by_rule[k]))) << name << " " << k;
    }
}

TEST(DirectKernels, GiveWhatTheRulesGive)
{
    for (const std::int64_t dim : {0, 1, 2}) {
        run_ranks(3, [dim](const std::shared_ptr<const DeviceMesh>& mesh) {
            set_gather_policy(GatherPolicy::Silent);
            const std::vector<Extents> extents{{5, 0, 2}, {1, 3, 0}, {0, 4, 2}};
            const auto own = extents[dim][mesh->all().rank()];
            auto shape = std::vector<std::int64_t>{7, 4, 6};
            shape[dim] = own;
            const auto local =
                (at::arange(168).slice(0, 0, own * 168 / std::vector{7, 4, 6}[dim]).view(shape) % 11).to(at::kFloat) -
                4;
            const auto x = from_local(local, mesh, {Shard(dim)});
            for (const auto& [name, call] : direct_calls()) {
                const auto direct = call(x);
                const IgnoreCalls observed;
                expect_same(name, direct, call(x));
            }
        });
    }
}

void minus_one(RuleCall& call)
{
    const auto spec = spec_of(call.tensor(0));
    call.finish({wrap(at::full_like(local_of(call.tensor(0)), -1), spec)});
}

TEST(DirectKernels, MakeWayForALaterRule)
{
    run_ranks(1, [](const std::shared_ptr<const DeviceMesh>& mesh) {
        const auto x = from_local(at::ones({3}), mesh, {Shard(0)});
        EXPECT_EQ(at::rsqrt(x).sum().item<float>(), 3);
        const RuleRegistration later("pointwise", {"aten::rsqrt"}, minus_one);
        EXPECT_EQ(at::rsqrt(x).sum().item<float>(), -3);
        const RuleRegistration again("pointwise", {"aten::rsqrt"}, pointwise_rule);
        EXPECT_EQ(at::rsqrt(x).sum().item<float>(), 3);
    });
}

}  // namespace
}  // namespace meshard
