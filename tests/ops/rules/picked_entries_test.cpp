// SPDX-License-Identifier: Apache-2.0
// Entries picked by masks, by several indices at once and by reductions, and shapes seen through cuts that cannot keep
// them, against the plain operators.
#include "sharding/tensor/rule_table.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/rule_property.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace meshard {
namespace {

using Indices = c10::List<std::optional<at::Tensor>>;

Indices list(std::initializer_list<at::Tensor> tensors)
{
    Indices indices;
    for (const auto& tensor : tensors) indices.push_back(tensor.defined() ? std::optional(tensor) : std::nullopt);
    return indices;
}

/// x[0] and x[1]: (n, m, c).
const std::vector<NamedOperator>& entry_operators()
{
    static const auto some = [](const at::Tensor& x) {
        const auto m = x.detach().select(-1, 0).gt(0).clone();
        m.select(0, 0).fill_(true);
        return m;
    };  // (n, m), not empty
    static const auto rows = [](const at::Tensor& x, std::int64_t dim) {
        return at::arange(5, at::kLong).mul(3).remainder(x.size(dim));
    };
    static const std::vector<NamedOperator> all{
        {"rows by a mask",
         [](auto& x) {
             const auto m = some(x[1]).select(1, 0);
             return Tensors{at::index(x[0], list({m})), at::index(x[0] * 2, list({m.logical_not()}))};
         }},
        {"middle rows by a mask",
         [](auto& x) {
             const auto m = some(x[1].transpose(0, 1)).select(1, 0);
             return Tensors{at::index(x[0], list({{}, m}))};
         }},
        {"entries by a mask",
         [](auto& x) {
             return Tensors{at::index(x[0], list({some(x[1])})), at::index(x[0], list({x[1].detach() > 0}))};
         }},
        {"writing by a mask",
         [](auto& x) {
             auto y = x[0] * 1;
             y.index_put_(list({some(x[1]).select(1, 0)}), at::tensor(0.5, x[0].scalar_type()));
             const auto m = some(x[1]).select(1, 0);
             return Tensors{y, at::index_put(x[0], list({m}), at::index(x[1], list({m})) * 3),
                            at::index_put(x[0], list({some(x[1])}), x[1].select(0, 0).select(0, 0), true)};
         }},
        {"two indices",
         [](auto& x) {
             return Tensors{at::index(x[0], list({rows(x[0], 0), rows(x[0], 1)})),
                            at::index(x[0], list({{}, rows(x[0], 1).unsqueeze(1) - x[0].size(1), rows(x[0], 2)})),
                            at::index(x[0], list({rows(x[0], 0), rows(x[0], 1).flip(0), rows(x[0], 2)}))};
         }},
        {"writing by two indices",
         [](auto& x) {
             const auto i = rows(x[0], 0), j = rows(x[0], 1);
             auto y = x[0] * 1;
             y.index_put_(list({i, j}), x[1].select(0, 0).select(0, 0), true);
             return Tensors{y, at::index_put(x[0], list({i, j}), at::index(x[1], list({i, j})), true)};
         }},
        {"extremes along a dimension",
         [](auto& x) {
             return Tensors{std::get<0>(x[0].max(1)),          std::get<0>(x[0].min(0, true)),
                            std::get<0>(at::topk(x[0], 1, 1)), std::get<0>(at::sort(x[0], 0)),
                            std::get<0>(at::cummax(x[0], 1)),  std::get<0>(x[0].median(2))};
         }},
        {"one_hot",
         [](auto& x) {
             const auto k = x[0].detach().abs().mul(3).to(at::kLong);
             return Tensors{at::one_hot(k), at::one_hot(k.clamp_max(2), 4), x[0] * 1};
         }},
        {"adding to a plain tensor",
         [](auto& x) {
             const auto i = rows(x[0], 0).narrow(0, 0, 1).expand({x[0].size(0)}).contiguous();
             return Tensors{at::zeros({7, x[0].size(1), x[0].size(2)}, x[0].scalar_type()).index_add_(0, i, x[0], 2),
                            at::zeros({7, x[0].size(1), x[0].size(2)}, x[0].scalar_type())
                                .scatter_add_(0, i.view({-1, 1, 1}).expand_as(x[0]), x[0])};
         }},
        {"shapes of permuted parts",
         [](auto& x) {
             const auto y = x[0].permute({2, 0, 1}), z = x[0].slice(2, 0, -1, 2);
             return Tensors{y.reshape({-1}),
                            y.reshape({x[0].size(2), -1}),
                            z.reshape({-1}),
                            z.flatten(1),
                            x[0].transpose(0, 1).reshape({-1, x[0].size(2)}),
                            y.unflatten(0, {x[0].size(2), 1}).flatten(1, 2)};
         }},
        {"turned",
         [](auto& x) {
             return Tensors{at::rot90(x[0], 1, {0, 1}), at::rot90(x[0], 2, {1, 2}), at::rot90(x[0], -1, {0, 2}),
                            at::rot90(x[0], 4, {0, 1})};
         }},
        {"searched",
         [](auto& x) {
             return Tensors{at::searchsorted(at::tensor({-1.0, 0.0, 0.5}, x[0].scalar_type()), x[0].detach()),
                            x[0] * 1};
         }},
        {"sparse products",
         [](auto& x) {
             const auto n = x[0].size(0);
             const auto a =
                 at::sparse_coo_tensor(at::stack({at::arange(n, at::kLong), at::arange(n, at::kLong).flip(0)}),
                                       at::arange(n, x[0].scalar_type()) + 1, {n, n});
             return Tensors{at::_sparse_mm(a, x[0].flatten(1))};
         }},
    };
    return all;
}

TEST(PickedEntries, EqualThePlainOperators)
{
    check_rule(
        [](Draw& draw) {
            const auto& [name, function] = draw.pick(entry_operators());
            const std::vector<std::int64_t> shape{draw.integer(1, 5), draw.integer(1, 5), draw.integer(1, 4)};
            return RuleCase{name, {draw.values(shape), draw.values(shape)}, function, {}};
        },
        {.num_cases = 500,
         .gathers = {{"aten::view|aten::_unsafe_view", "", "a shape that cannot keep the cut of permuted parts"},
                     {"aten::index.Tensor|aten::index_put", "Shard\\([1-9]|second", kOrderOfTheWhole},
                     {"aten::scatter.src", "second", kTwoAxes}}});
}

/// A network over points in training: neither the greatest over the points nor its gradient makes a rank hold them all.
TEST(PickedEntries, GradientOfAMaximumLiesAsWhatItWasTakenOf)
{
    run_ranks(3, [](std::shared_ptr<const DeviceMesh> mesh) {
        set_gather_policy(GatherPolicy::Refuse);
        const auto rows = 2 + mesh->coordinate(0);
        const auto x = from_local(at::randn({2, rows, 4}, at::kDouble), mesh, {Shard(1)}).requires_grad_(true);

        std::get<0>(x.max(2)).sum().backward();

        EXPECT_EQ(local_of(x.grad()).size(1), rows);
        EXPECT_DOUBLE_EQ(full_tensor(x.grad()).sum().item<double>(), 2.0 * 9);
    });
}

}  // namespace
}  // namespace meshard
