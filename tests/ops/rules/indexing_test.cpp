// SPDX-License-Identifier: Apache-2.0
// Rows picked and written by index, and losses over classes, against the plain operators.
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/rule_table.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/rule_property.h"
#include "tests/support/run_ranks.h"
#include "tests/support/test_device.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace meshard {
namespace {

at::Tensor draw_index(Draw& draw, c10::IntArrayRef shape, std::int64_t n)
{
    auto index = at::empty(shape, at::kLong);
    for (std::int64_t i = 0; i < index.numel(); ++i) index.data_ptr<std::int64_t>()[i] = draw.integer(0, n - 1);
    return index;
}

TEST(Indexing, EqualsThePlainOperators)
{
    check_rule(
        [](Draw& draw) {
            const auto n = draw.integer(2, 7), m = draw.integer(2, 6), k = draw.integer(1, 6);
            const auto dim = draw.integer(0, 1), size = dim == 0 ? n : m;
            // Inputs: values, as many others, an index along `dim`, one for every entry.
            const std::vector<NamedOperator> operators{
                {"index_select",
                 [=](auto& x) {
                     return Tensors{at::index_select(x[0], dim, x[2]), at::index_select(x[2], 0, x[2] * 0)};
                 }},
                {"gather", [=](auto& x) { return Tensors{at::gather(x[0], dim, x[3])}; }},
                {"scatter_add", [=](auto& x) { return Tensors{at::scatter_add(x[0], dim, x[3], x[1])}; }},
                {"scatter with a value", [=](auto& x) { return Tensors{at::scatter(x[0], dim, x[3], 2.5)}; }},
                {"scatter_reduce", [=](auto& x) { return Tensors{at::scatter_reduce(x[0], dim, x[3], x[1], "amax")}; }},
                {"index_add",
                 [=](auto& x) {
                     return Tensors{at::index_add(x[0], dim, x[2], at::index_select(x[1], dim, x[2]), 2)};
                 }},
                {"index_fill", [=](auto& x) { return Tensors{at::index_fill(x[0], dim, x[2], 3)}; }},
                {"index",
                 [=](auto& x) {
                     return Tensors{at::index(x[0], {x[2] * 0 + 1}), at::index(x[0], {x[2] * 0, x[2] * 0 + 1})};
                 }},
                {"index_put",
                 [=](auto& x) { return Tensors{at::index_put(x[0], {x[2] * 0 + 1}, x[1].narrow(0, 0, 1), true)}; }},
                {"masks",
                 [=](auto& x) {
                     return Tensors{at::masked_select(x[0], x[1] > 0), at::masked_fill(x[0], x[1] > 0, 2),
                                    x[0].index({x[1] > 0})};
                 }},
                {"masked_scatter", [=](auto& x) { return Tensors{at::masked_scatter(x[0], x[1] > 0, x[1])}; }},
                {"embedding",
                 [=](auto& x) {
                     return Tensors{at::embedding(x[0], x[2] * 0 + 1),
                                    at::embedding(x[0], x[3].remainder(x[0].size(0)))};
                 }},
                {"one_hot", [=](auto& x) { return Tensors{at::one_hot(x[3], size), at::nonzero(x[1] > 0)}; }},
                {"bucketize",
                 [=](auto& x) {
                     return Tensors{at::bucketize(
                         x[0].detach(),
                         at::tensor({-1.0, 0.0, 0.5}, at::TensorOptions(at::kDouble).device(x[0].device())))};
                 }},
                {"triangles", [=](auto& x) { return Tensors{at::tril(x[0], 1), at::triu(x[0])}; }},
                {"take_along_dim",
                 [=](auto& x) { return Tensors{at::take_along_dim(x[0], at::argsort(x[1], dim), dim)}; }},
            };
            const auto& [name, function] = draw.pick(operators);
            return RuleCase{
                name,
                {draw.values({n, m}), draw.values({n, m}), draw_index(draw, {k}, size), draw_index(draw, {n, m}, size)},
                function,
                {}};
        },
        {.num_cases = 400,
         .gathers = {{"aten::masked_scatter_?", "", "which value goes where depends on all entries before"},
                     {"aten::masked_scatter_backward", "", kNoRule},
                     {"aten::masked_select|aten::nonzero|aten::index.Tensor", "Shard\\([1-9]|second", kOrderOfTheWhole},
                     {"aten::gather|aten::view|aten::scatter_add|aten::scatter_reduce.two|aten::scatter.value",
                      "second", kTwoAxes}}});
}

TEST(Indexing, EqualsThePlainOperatorsWithIndicesOfTheCpu)
{
    if (!has_device_of_tests()) GTEST_SKIP() << "this process sees no device of type " << device_of_tests();
    Draw draw(5);
    const auto whole = draw.values({9, 4});
    const auto rows = at::tensor({7, 0, 7, -1}, at::kLong), columns = at::tensor({3, 3, 0, 2}, at::kLong);
    const auto mask = draw.values({9}) > 0, number = at::scalar_tensor(2.5, at::kDouble);
    const auto results = [&](const at::Tensor& x) {
        auto written = x * 1;
        written.index_put_({columns}, number);
        return Tensors{at::index(x, {rows}), at::index(x, {rows, columns}), at::index(x, {mask}),
                       at::index_put(x, {rows}, number, true), written};
    };
    const auto expected = results(whole);
    run_ranks(3, [&](const auto& mesh) {
        set_gather_policy(GatherPolicy::Silent);
        const AxisLayout cut{Shard(0), std::make_shared<Extents>(Extents{4, 0, 5}), 1};
        const auto x = from_local(narrow_to_shard(whole, cut, mesh->coordinate(0)).clone().to(device_of_tests()),
                                  make_spec(mesh, {cut}));
        const auto found = results(x);
        for (std::size_t i = 0; i < expected.size(); ++i)
            EXPECT_TRUE(at::equal(full_tensor(found[i]).cpu(), expected[i])) << i;
    });
}

TEST(ClassLosses, EqualThePlainOperators)
{
    check_rule(
        [](Draw& draw) {
            const auto n = draw.integer(1, 7), classes = draw.integer(2, 5), h = draw.integer(1, 4),
                       w = draw.integer(1, 5);
            const bool pixels = draw.chance(0.5), weighted = draw.chance(0.4);
            const auto reduction = draw.integer(0, 2),
                       ignored = draw.chance(0.4) ? std::int64_t{1} : std::int64_t{-100};
            const auto smoothing = draw.chance(0.3) ? 0.1 : 0.0;
            const auto weight = draw.values({classes}).square() + 0.1;
            const std::vector<std::int64_t> shape =
                pixels ? std::vector<std::int64_t>{n, classes, h, w} : std::vector<std::int64_t>{n, classes};
            const auto target =
                draw_index(draw, pixels ? std::vector<std::int64_t>{n, h, w} : std::vector<std::int64_t>{n}, classes);
            target.view({-1})[0] = 0;  // one that is not ignored
            return RuleCase{
                "cross entropy",
                {draw.values(shape), target},
                [=](const Tensors& x) {
                    const auto weights =
                        weighted ? std::make_optional(weight.to(x[0].device(), x[0].scalar_type())) : std::nullopt;
                    return Tensors{at::cross_entropy_loss(x[0], x[1], weights, reduction, ignored, smoothing)};
                },
                {}};
        },
        {.num_cases = 300, .gathers = {{"aten::masked_select", "Shard\\([1-9]", kOrderOfTheWhole}}});
}

TEST(ElementLosses, EqualThePlainOperators)
{
    check_rule(
        [](Draw& draw) {
            const auto reduction = draw.integer(0, 2);
            const std::vector<NamedOperator> operators{
                {"binary cross entropy",
                 [=](auto& x) {
                     return Tensors{
                         at::binary_cross_entropy(at::sigmoid(x[0]), at::sigmoid(x[1].detach()), {}, reduction)};
                 }},
                {"with logits",
                 [=](auto& x) {
                     return Tensors{at::binary_cross_entropy_with_logits(x[0], at::sigmoid(x[1]), {}, {}, reduction)};
                 }},
                {"l1", [=](auto& x) { return Tensors{at::l1_loss(x[0], x[1], reduction)}; }},
                {"kl_div",
                 [=](auto& x) {
                     return Tensors{at::kl_div(at::log_softmax(x[0], 1), at::softmax(x[1], 1), reduction)};
                 }},
                {"soft margin",
                 [=](auto& x) { return Tensors{at::soft_margin_loss(x[0], x[1].detach().sign(), reduction)}; }},
                {"poisson",
                 [=](auto& x) {
                     return Tensors{at::poisson_nll_loss(x[0], x[1].detach().exp(), true, false, 1e-8, reduction)};
                 }},
                {"hinge",
                 [=](auto& x) { return Tensors{at::hinge_embedding_loss(x[0], x[1].detach().sign(), 1, reduction)}; }},
                {"cosine",
                 [=](auto& x) {
                     return Tensors{
                         at::cosine_embedding_loss(x[0], x[1], at::ones({x[0].size(0)}, at::kDouble), 0, reduction)};
                 }},
            };
            const auto& [name, function] = draw.pick(operators);
            const std::vector<std::int64_t> shape{draw.integer(2, 7), draw.integer(2, 5)};
            return RuleCase{name, {draw.values(shape), draw.values(shape)}, function, {}};
        },
        {.num_cases = 200});
}

}  // namespace
}  // namespace meshard
