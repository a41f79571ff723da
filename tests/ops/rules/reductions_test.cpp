// SPDX-License-Identifier: Apache-2.0
// Reductions, softmax and running sums over cut dimensions, against the plain operators.
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/rule_table.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/rule_property.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

namespace meshard {
namespace {

std::vector<std::int64_t> draw_shape(Draw& draw)
{
    std::vector<std::int64_t> shape;
    for (auto k = draw.integer(1, 3); k > 0; --k) shape.push_back(draw.integer(2, 7));
    return shape;
}

Tensors tensors(std::tuple<at::Tensor, at::Tensor> pair)
{
    return {std::get<0>(pair), std::get<1>(pair)};
}

/// Every operator, over one random dimension and over everything.
std::vector<NamedOperator> reductions(std::int64_t dim, bool keepdim, double p)
{
    return {
        {"max", [=](auto& x) { return tensors(at::max(x[0], dim, keepdim)); }},
        {"min", [=](auto& x) { return tensors(at::min(x[0], dim, keepdim)); }},
        {"max of all", [=](auto& x) { return Tensors{at::max(x[0]), at::min(x[0])}; }},
        {"amax", [=](auto& x) { return Tensors{at::amax(x[0], {dim}, keepdim), at::amax(x[0])}; }},
        {"amin", [=](auto& x) { return Tensors{at::amin(x[0], {dim}, keepdim), at::amin(x[0])}; }},
        {"argmax",
         [=](auto& x) {
             return Tensors{at::argmax(x[0], dim, keepdim), at::argmin(x[0], dim, keepdim), at::argmax(x[0])};
         }},
        {"aminmax", [=](auto& x) { return tensors(at::aminmax(x[0].detach(), dim, keepdim)); }},
        {"prod", [=](auto& x) { return Tensors{at::prod(x[0], dim, keepdim), at::prod(x[0])}; }},
        {"any",
         [=](auto& x) {
             return Tensors{at::any(x[0] > 1, dim, keepdim), at::any(x[0] > 2), at::all(x[0] > -1, dim, keepdim),
                            at::all(x[0] > -2)};
         }},
        {"var", [=](auto& x) { return Tensors{at::var(x[0], at::IntArrayRef{dim}, 0, keepdim), at::var(x[0])}; }},
        {"std", [=](auto& x) { return Tensors{at::std(x[0], at::IntArrayRef{dim}, 1, keepdim), at::std(x[0])}; }},
        {"var_mean", [=](auto& x) { return tensors(at::var_mean(x[0], at::IntArrayRef{dim}, 1, keepdim)); }},
        {"vector norm",
         [=](auto& x) {
             return Tensors{at::linalg_vector_norm(x[0], p, at::IntArrayRef{dim}, keepdim),
                            at::linalg_vector_norm(x[0], p)};
         }},
        {"norm", [=](auto& x) { return Tensors{at::norm(x[0], 3, {dim}, keepdim), at::norm(x[0])}; }},
        {"logsumexp", [=](auto& x) { return Tensors{at::logsumexp(x[0], {dim}, keepdim)}; }},
        {"nansum",
         [=](auto& x) { return Tensors{at::nansum(x[0], at::IntArrayRef{dim}, keepdim), at::nanmean(x[0])}; }},
        {"count_nonzero",
         [=](auto& x) { return Tensors{at::count_nonzero(x[0] > 0, at::IntArrayRef{dim}), at::count_nonzero(x[0])}; }},
        {"histc", [=](auto& x) { return Tensors{at::histc(x[0], 5), at::histc(x[0].detach(), 4, -1, 1)}; }},
        {"median", [=](auto& x) { return Tensors{std::get<0>(at::median(x[0], dim, keepdim)), at::median(x[0])}; }},
        {"kthvalue", [=](auto& x) { return tensors(at::kthvalue(x[0], 2, dim, keepdim)); }},
    };
}

std::vector<NamedOperator> lines(std::int64_t dim, std::int64_t shift)
{
    return {
        {"softmax", [=](auto& x) { return Tensors{at::softmax(x[0], dim)}; }},
        {"log_softmax", [=](auto& x) { return Tensors{at::log_softmax(x[0], dim)}; }},
        {"safe softmax", [=](auto& x) { return Tensors{at::_safe_softmax(x[0], dim)}; }},
        {"cumsum", [=](auto& x) { return Tensors{at::cumsum(x[0], dim)}; }},
        {"cumprod", [=](auto& x) { return Tensors{at::cumprod(x[0], dim)}; }},
        {"logcumsumexp", [=](auto& x) { return Tensors{at::logcumsumexp(x[0], dim)}; }},
        {"cummax", [=](auto& x) { return tensors(at::cummax(x[0], dim)); }},
        {"sort", [=](auto& x) { return tensors(at::sort(x[0], dim, true)); }},
        {"argsort", [=](auto& x) { return Tensors{at::argsort(x[0], dim)}; }},
        {"topk", [=](auto& x) { return tensors(at::topk(x[0], 2, dim)); }},
        {"flip", [=](auto& x) { return Tensors{at::flip(x[0], {dim})}; }},
        {"roll", [=](auto& x) { return Tensors{at::roll(x[0], shift, dim), at::roll(x[0], shift)}; }},
        {"diff", [=](auto& x) { return Tensors{at::diff(x[0], 1, dim)}; }},
    };
}

RuleCase pick(Draw& draw, const std::vector<NamedOperator>& all, std::vector<std::int64_t> shape)
{
    const auto& [name, function] = all[draw.integer(0, static_cast<std::int64_t>(all.size()) - 1)];
    auto x = draw.values(shape);
    if (draw.chance(0.3)) x = x.mul(2).round() / 2;  // equal values
    return {name, {x}, function, {}};
}

TEST(Reductions, EqualThePlainOperators)
{
    check_rule(
        [](Draw& draw) {
            const auto shape = draw_shape(draw);
            const auto dim =
                draw.integer(-static_cast<std::int64_t>(shape.size()), static_cast<std::int64_t>(shape.size()) - 1);
            const auto p = draw.pick(std::vector<double>{0, 1, 2, 3, 0.5, std::numeric_limits<double>::infinity(),
                                                         -std::numeric_limits<double>::infinity()});
            auto item = pick(draw, reductions(dim, draw.chance(0.5), p), shape);
            // Which of equal values gets the gradient of an order statistic is not defined.
            if (item.text == "median" || item.text == "kthvalue") item.inputs[0] = draw.values(shape);
            return item;
        },
        {.num_cases = 400,
         .tolerance = 1e-10,
         .first_seed = 1,
         .gathers = {{"aten::median", "", "the middle of all values is known to no part"},
                     {"aten::nonzero", "Shard\\([1-9]|second", kOrderOfTheWhole},
                     {"aten::view|aten::scatter.src", "second", kTwoAxes}}});
}

TEST(Lines, EqualThePlainOperators)
{
    check_rule(
        [](Draw& draw) {
            const auto shape = draw_shape(draw);
            const auto dim =
                draw.integer(-static_cast<std::int64_t>(shape.size()), static_cast<std::int64_t>(shape.size()) - 1);
            auto item = pick(draw, lines(dim, draw.integer(-5, 5)), shape);
            // Nor is it where equal values change places; the gradient of a running product with zeros writes into
            // plain tensors.
            if (item.text == "cumprod" || item.text == "sort" || item.text == "argsort" || item.text == "topk" ||
                item.text == "cummax")
                item.inputs[0] = draw.values(shape);
            return item;
        },
        {.num_cases = 300,
         .tolerance = 1e-10,
         .first_seed = 1,
         .gathers = {{"aten::roll", "", "rolled as one line, without dimensions"},
                     {"aten::scatter.src", "second", kTwoAxes}}});
}

/// What `function` gives for rows cut 0 + 3 + 2 equals what it gives for the whole, in bits where nothing is summed.
void expect_equal(const at::Tensor& whole, const std::function<at::Tensor(const at::Tensor&)>& function)
{
    const auto expected = function(whole);
    run_ranks(3, [&](const auto& mesh) {
        const auto layout = AxisLayout{Shard(0), std::make_shared<Extents>(Extents{0, 3, whole.size(0) - 3}), 1};
        const auto x =
            from_local(narrow_to_shard(whole, layout, mesh->coordinate(0)).clone(), make_spec(mesh, {layout}));
        EXPECT_TRUE(tensors_near(full_tensor(function(x)), expected, 0));
    });
}

TEST(Reductions, CarryNanAndInfinity)
{
    const auto nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
    const auto x =
        at::tensor({1.0, nan, -inf, 4.0, inf, -inf, -inf, 2.0, -inf, -inf, 0.5, -inf}, at::kDouble).view({4, 3});
    expect_equal(x, [](const at::Tensor& x) { return at::amax(x, {0}); });
    expect_equal(x, [](const at::Tensor& x) { return at::amin(x, {0}); });
    expect_equal(x, [](const at::Tensor& x) { return std::get<1>(at::max(x, 0)); });
    expect_equal(x, [](const at::Tensor& x) { return at::argmin(x, 0); });
    expect_equal(x, [](const at::Tensor& x) { return at::nansum(x, at::IntArrayRef{0}); });
    expect_equal(x.narrow(1, 2, 1), [](const at::Tensor& x) { return at::softmax(x, 0).isnan(); });
    expect_equal(at::full({4, 1}, -inf), [](const at::Tensor& x) { return at::_safe_softmax(x, 0); });
    expect_equal(at::full({4, 1}, -inf), [](const at::Tensor& x) { return at::logsumexp(x, {0}); });
}

TEST(Reductions, TakeEveryType)
{
    for (const auto type : {at::kByte, at::kInt, at::kLong, at::kFloat}) {
        const auto x = at::tensor({3, 1, 7, 7, 0, 2, 5, 5, 1, 2}, type).view({5, 2});
        expect_equal(x, [](const at::Tensor& x) { return at::amax(x, {0}); });
        expect_equal(x, [](const at::Tensor& x) { return at::min(x); });
        expect_equal(x, [](const at::Tensor& x) { return at::prod(x, 0); });
        expect_equal(x, [](const at::Tensor& x) { return at::any(x, 0); });
        expect_equal(x, [](const at::Tensor& x) { return at::argmax(x, 0); });
        expect_equal(x, [](const at::Tensor& x) { return at::cumsum(x, 0); });
        expect_equal(x, [](const at::Tensor& x) { return at::cumsum(x, 1); });
        expect_equal(x, [](const at::Tensor& x) { return std::get<0>(at::sort(x, 0)); });
        expect_equal(x > 2, [](const at::Tensor& x) { return at::amax(x, {0}); });
    }
}

TEST(Reductions, GatherNoRows)
{
    run_ranks(3, [](const auto& mesh) {
        set_gather_policy(GatherPolicy::Refuse);
        const auto x = from_local(at::arange(24, at::kDouble).view({6, 4}), mesh, {Shard(0)}).requires_grad_();
        mesh->counter().reset();
        const auto y = at::softmax(x, 0);
        EXPECT_LE(mesh->counter().total_bytes(), 3 * 2 * 4 * 8);
        (y * y.detach().std(0) + at::amax(y, {0}) + at::cumsum(y, 0) + at::roll(y, 2, 0)).sum().backward();
        set_gather_policy(GatherPolicy::Warn);
    });
}

/// What a normalisation over cut rows sends, forward and backward: the sums, however many rows there are.
TEST(Reductions, AreAddedUpBeforeTheyAreRepeated)
{
    run_ranks(3, [](const auto& mesh) {
        const auto bytes = [&](std::int64_t rows, const auto& normalised) {
            const auto x = from_local(at::rand({rows, 6}, at::kDouble) + 1, mesh, {Shard(0)}).requires_grad_();
            mesh->counter().reset();
            const auto y = normalised(x);
            (y * y).sum().backward();
            return mesh->counter().total_bytes();
        };
        const auto divided = [](const at::Tensor& x) { return x / x.sum(0, true); };
        const auto repeated = [](const at::Tensor& x) {
            return x * x.sum(0, true).expand({x.size(0), -1}) + x.sum(0, true).repeat({x.size(0), 1});
        };
        EXPECT_EQ(bytes(2, divided), bytes(500, divided));
        EXPECT_EQ(bytes(2, repeated), bytes(500, repeated));
    });
}

}  // namespace
}  // namespace meshard
