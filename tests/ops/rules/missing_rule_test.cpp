// SPDX-License-Identifier: Apache-2.0
#include "sharding/tensor/rule_table.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace meshard {
namespace {

template <class F>
std::string refusal(F&& f)
{
    try {
        f();
    } catch (const MissingShardRule& error) {
        return error.what();
    }
    return {};
}

TEST(MissingShardRule, NamesOperatorPlacementsAndRemedy)
{
    run_ranks(2, [](const auto& mesh) {
        const auto x = from_local(at::ones({3 + mesh->coordinate(0), 4}), mesh, {Shard(0)});

        const auto message = refusal([&] { x.resize_({3, 4}); });

        EXPECT_NE(message.find("aten::resize_"), std::string::npos) << message;
        EXPECT_NE(message.find("Shard(0) of 3+4 on domain"), std::string::npos) << message;
        EXPECT_NE(message.find("redistribute(x, Replicate())"), std::string::npos) << message;
    });
}

TEST(MissingShardRule, NamesOperatorsThatMakeSparseTensors)
{
    run_ranks(2, [](const auto& mesh) {
        const auto x = from_local(at::ones({3 + mesh->coordinate(0), 4}), mesh, {Shard(0)});
        for (const auto& tensor : {x, x.detach().requires_grad_()}) {
            EXPECT_NE(refusal([&] { tensor.to_sparse(); }).find("makes a sparse tensor"), std::string::npos);
            EXPECT_NE(refusal([&] { tensor.to_sparse_csr(); }).find("makes a sparse tensor"), std::string::npos);
        }
        const auto ids = from_local(at::zeros({1, 3 + mesh->coordinate(0)}, at::kLong), mesh, {Shard(1)});
        EXPECT_NE(refusal([&] { at::sparse_coo_tensor(ids, x, {5, 4}); }).find("makes a sparse tensor"),
                  std::string::npos);
    });
}

TEST(MissingShardRule, NamesOperatorsWhoseResultChangesTheShapeInPlace)
{
    run_ranks(2, [](const auto& mesh) {
        const auto sum = from_local(at::ones({mesh->coordinate(0)}), mesh,
                                    {Shard(0)});  // a single value, which the plain operator gives another shape
        const auto message = refusal([&] { sum.clone().addbmm_(at::ones({2, 1, 3}), at::ones({2, 3, 4})); });

        EXPECT_NE(message.find("aten::addbmm_"), std::string::npos) << message;
        EXPECT_NE(message.find("Use the form that returns a new tensor"), std::string::npos) << message;
    });
}

TEST(MissingShardRule, LetsAnyOperatorWorkOnWhatLiesWholeOnEveryRank)
{
    run_ranks(2, [](const auto& mesh) {
        const auto whole = at::arange(6, at::kDouble).view({2, 3});
        const auto x = from_local(whole, mesh, {Replicate()});

        EXPECT_TRUE(at::equal(to_local(at::cumsum(x, 0)), at::cumsum(whole, 0)));
        EXPECT_TRUE(at::equal(to_local(std::get<1>(at::sort(x, 1, true))), std::get<1>(at::sort(whole, 1, true))));
    });
}

TEST(RuleTable, ListsEveryOperatorOnce)
{
    const auto rules = list_rules();
    EXPECT_GT(rules.size(), 2000u);
    for (std::size_t i = 1; i < rules.size(); ++i) EXPECT_LT(rules[i - 1].op, rules[i].op);
    const auto find = [&](const std::string& op) {
        for (const auto& rule : rules) {
            if (rule.op == op) return rule.family;
        }
        return std::string("absent");
    };
    EXPECT_EQ(find("aten::mm"), "matrix products");
    EXPECT_EQ(find("aten::gelu"), "pointwise");
    EXPECT_EQ(find("aten::renorm"), "gathered");
}

}  // namespace
}  // namespace meshard
