// SPDX-License-Identifier: Apache-2.0
// The rule of last resort: exact whatever the operator.
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/rule_table.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/rule_property.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace meshard {
namespace {

TEST(GatheredRule, IsExactForOperatorsWithoutARuleOfTheirOwn)
{
    check_rule(
        [](Draw& draw) {
            const auto n = draw.integer(3, 9), m = draw.integer(3, 6);
            const std::vector<
                std::pair<const char*, std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>>>
                operators{
                    {"renorm", [](auto& x) { return std::vector{at::renorm(x[0], 2, 0, 1.0)}; }},
                    {"trace of a square", [](auto& x) { return std::vector{at::trace(at::mm(x[0].t(), x[0]))}; }},
                    {"logcumsumexp", [](auto& x) { return std::vector{at::logcumsumexp(x[0], 0)}; }},
                    {"cdist", [](auto& x) { return std::vector{at::cdist(x[0], x[0] * 2 + 1)}; }},
                    {"put in place",
                     [](auto& x) {
                         auto y = x[0] * 1;
                         y.index_fill_(0, at::tensor({1, 2}, at::kLong), 3.0);
                         return std::vector{y * x[0]};
                     }},
                    {"softmax over any dimension",
                     [](auto& x) { return std::vector{at::softmax(x[0], 0), at::log_softmax(x[0], 1)}; }},
                    {"layer norm over rows",
                     [](auto& x) { return std::vector{at::layer_norm(x[0].t(), {x[0].size(0)})}; }},
                    {"joined and selected",
                     [](auto& x) {
                         auto y = at::cat({x[0], x[0] * 2}, 0);
                         return std::vector{y.slice(0, 1, 5, 2), y.select(0, 2), y.flatten()};
                     }},
                    {"cummax",
                     [](auto& x) {
                         auto [v, i] = at::cummax(x[0], 0);
                         return std::vector{v, i};
                     }},
                };
            const auto& [name, function] = operators[draw.integer(0, static_cast<std::int64_t>(operators.size()) - 1)];
            return RuleCase{name, {draw.values({n, m})}, function, {}};
        },
        {.gathers = {{"aten::renorm", "", kNoRule}}});
}

TEST(GatheredRule, KeepsTheLayoutOfWhatIsWrittenTo)
{
    run_ranks(3, [](const auto& mesh) {
        const auto whole = at::arange(14, at::kDouble).view({7, 2});
        const auto layout = AxisLayout{Shard(0), std::make_shared<Extents>(Extents{5, 0, 2}), 1};
        const auto x =
            from_local(narrow_to_shard(whole, layout, mesh->coordinate(0)).clone(), make_spec(mesh, {layout}));
        set_gather_policy(GatherPolicy::Silent);

        x.index_add_(0, at::tensor({6, 0}, at::kLong), at::ones({2, 2}, at::kDouble));

        EXPECT_EQ(to_string(*spec_of(x)), "Shard(0) of 5+0+2 on domain");
        EXPECT_TRUE(at::equal(
            full_tensor(x), whole.clone().index_add_(0, at::tensor({6, 0}, at::kLong), at::ones({2, 2}, at::kDouble))));
    });
}

TEST(GatheredRule, WritesTheWholeIntoAPlainTensor)
{
    run_ranks(2, [](const auto& mesh) {
        const auto x = from_local(at::full({2 + mesh->coordinate(0), 2}, 1.0 + mesh->coordinate(0), at::kDouble), mesh,
                                  {Shard(0)});
        const auto whole = at::tensor({1.0, 1.0, 2.0, 2.0, 2.0}, at::kDouble).view({5, 1}).expand({5, 2});
        auto sum = at::ones({5, 2}, at::kDouble), copy = at::zeros({5, 2}, at::kDouble);

        sum.add_(x);
        copy.copy_(x);

        EXPECT_TRUE(at::equal(sum, whole + 1));
        EXPECT_TRUE(at::equal(copy, whole));
    });
}

TEST(GatheredRule, ReshapesInPlace)
{
    run_ranks(2, [](const auto& mesh) {
        auto x = from_local(at::ones({2 + mesh->coordinate(0), 3}, at::kDouble), mesh, {Shard(0)}) * 2;
        x.unsqueeze_(0).transpose_(0, 2);
        EXPECT_EQ(x.sizes(), at::IntArrayRef({3, 5, 1}));
        EXPECT_TRUE(at::equal(full_tensor(x), at::full({3, 5, 1}, 2.0, at::kDouble)));
    });
}

TEST(GatheredRule, TransposesASquareInPlaceAndLeavesItsViewsAlone)
{
    run_ranks(2, [](const auto& mesh) {
        const auto whole = at::arange(25, at::kDouble).view({5, 5});
        const auto layout = AxisLayout{Shard(0), std::make_shared<Extents>(Extents{2, 3}), 1};
        auto x = from_local(narrow_to_shard(whole, layout, mesh->coordinate(0)).clone(), make_spec(mesh, {layout}));
        const auto older = x.narrow(1, 0, 2);

        x.t_();

        EXPECT_TRUE(at::equal(full_tensor(x), whole.t()));
        EXPECT_TRUE(at::equal(full_tensor(older), whole.narrow(1, 0, 2)));
    });
}

TEST(GatheredRule, IsRefusedWherePolicySaysSo)
{
    run_ranks(2, [](const auto& mesh) {
        const auto x = from_local(at::ones({3, 2}), mesh, {Shard(0)});
        set_gather_policy(GatherPolicy::Refuse);
        EXPECT_THROW(at::renorm(x, 2, 0, 1.0), MissingShardRule);
        set_gather_policy(GatherPolicy::Warn);
    });
}

}  // namespace
}  // namespace meshard
