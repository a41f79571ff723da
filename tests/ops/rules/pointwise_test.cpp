// SPDX-License-Identifier: Apache-2.0
// Pointwise operators on operands that lie in any way, against the plain operators.
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/rule_property.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace meshard {
namespace {

/// x[0] and x[1] broadcast against each other.
const std::vector<NamedOperator>& pointwise_operators()
{
    static const std::vector<NamedOperator> all{
        {"arithmetic",
         [](auto& x) {
             return Tensors{x[0] + x[1], x[0] - x[1] * 2,     x[0] * x[1], x[0] / (x[1].abs() + 1),
                            1 - x[0],    2 / (x[1].abs() + 1)};
         }},
        {"scaled sums",
         [](auto& x) { return Tensors{at::add(x[0], x[1], 3), at::sub(x[0], x[1], 0.5), at::rsub(x[0], x[1], 2)}; }},
        {"powers",
         [](auto& x) {
             return Tensors{x[0].pow(2),   (x[0].abs() + 0.5).pow(x[1]), at::pow(2, x[0]),
                            x[0].square(), (x[0].abs() + 1).sqrt(),      (x[0].abs() + 1).rsqrt()};
         }},
        {"exponentials",
         [](auto& x) {
             return Tensors{
                 x[0].exp(), x[0].expm1(), (x[0].abs() + 1).log(), x[0].abs().log1p(), at::logaddexp(x[0], x[1]),
                 x[0].exp2()};
         }},
        {"trigonometry",
         [](auto& x) {
             return Tensors{x[0].sin(),  x[0].cos(), x[0].tanh(), x[0].sinh(), x[0].atan(), at::atan2(x[0], x[1]),
                            x[0].asinh()};
         }},
        {"activations",
         [](auto& x) {
             return Tensors{at::relu(x[0]), at::gelu(x[0]), at::gelu(x[0], "tanh"), at::silu(x[0]),
                            at::mish(x[0]), at::elu(x[0]),  at::selu(x[0]),         at::celu(x[0])};
         }},
        {"more activations",
         [](auto& x) {
             return Tensors{at::leaky_relu(x[0], 0.2), at::softplus(x[0]),    at::hardtanh(x[0]),
                            at::hardswish(x[0]),       at::hardsigmoid(x[0]), at::softshrink(x[0]),
                            at::hardshrink(x[0]),      at::relu6(x[0]),       at::log_sigmoid(x[0])};
         }},
        {"erf and friends",
         [](auto& x) {
             return Tensors{x[0].erf(),
                            x[0].erfc(),
                            (x[0].abs() + 1).lgamma(),
                            (x[0].abs() + 1).digamma(),
                            x[0].sigmoid(),
                            x[0].tanh().mul(0.5).erfinv(),
                            x[0].sinc(),
                            x[0].logit(1e-2)};
         }},
        {"rounding",
         [](auto& x) {
             return Tensors{x[0].round(), x[0].floor(), x[0].ceil(), x[0].trunc(),
                            x[0].frac(),  x[0].sign(),  x[0].neg(),  x[0].reciprocal()};
         }},
        {"division with rounding",
         [](auto& x) {
             const auto d = x[1].abs() + 1;
             return Tensors{at::div(x[0], d, "floor"), at::div(x[0], d, "trunc"), x[0].remainder(d), x[0].fmod(d),
                            at::floor_divide(x[0].detach(), d.detach())};
         }},
        {"extremes",
         [](auto& x) {
             return Tensors{at::maximum(x[0], x[1]), at::minimum(x[0], x[1]), at::fmax(x[0], x[1]),
                            at::max(x[0], x[1]),     at::hypot(x[0], x[1]),   at::copysign(x[0], x[1])};
         }},
        {"clamping",
         [](auto& x) {
             return Tensors{x[0].clamp(-0.5, 1), x[0].clamp_min(0), x[0].clamp_max(0.3),
                            at::clamp(x[0], x[1] - 1, x[1] + 1), at::clamp_min(x[0], x[1])};
         }},
        {"comparisons",
         [](auto& x) {
             return Tensors{x[0] > x[1],
                            x[0] <= 0.2,
                            x[0].eq(x[1]),
                            x[0].ne(0),
                            (x[0] > 0).logical_and(x[1] > 0),
                            (x[0] > 0) ^ (x[1] > 0),
                            (x[0] > 0).logical_not()};
         }},
        {"choice",
         [](auto& x) {
             return Tensors{at::where(x[0] > 0, x[0], x[1]), at::where(x[1] > 0, x[0], 2.0),
                            x[0].masked_fill(x[0] > 0.5, 3), at::nan_to_num(x[0].log()), x[0].isnan()};
         }},
        {"three operands",
         [](auto& x) {
             return Tensors{at::addcmul(x[0], x[1], x[0], 2), at::addcdiv(x[0], x[1], x[0].abs() + 1, -1),
                            at::lerp(x[0], x[1], 0.3), at::lerp(x[0], x[1], x[0].sigmoid())};
         }},
        {"types",
         [](auto& x) {
             return Tensors{x[0].to(at::kFloat) + x[0], (x[0] * 3).to(at::kLong) * 2 + x[0], (x[0] > 0) * x[1],
                            (x[0] * 3).to(at::kInt) / 2, x[0].to(at::kFloat).to(at::kDouble)};
         }},
        {"integers",
         [](auto& x) {
             const auto a = (x[0] * 5).to(at::kLong), b = (x[1] * 5).to(at::kLong).abs() + 1;
             return Tensors{a & b, a | b, a ^ b, a.bitwise_not(), at::bitwise_left_shift(a, 1), at::gcd(a, b), a % b};
         }},
        {"complex numbers",
         [](auto& x) {
             const auto z = at::complex(x[0], x[0] * 2);
             return Tensors{at::real(z * z.conj()), z.abs(), at::imag(z.exp()), at::view_as_real(z)};
         }},
        {"prelu and glu",
         [](auto& x) {
             return Tensors{at::prelu(x[0], x[1].abs().mean()), at::xlogy(x[0], x[1].abs() + 1),
                            at::heaviside(x[0].detach(), x[1].detach()), x[0].abs()};
         }},
        {"in place",
         [](auto& x) {
             auto y = x[0] + x[1];
             y.add_(1).mul_(x[1]).sub_(x[1], 2).div_(3);
             auto z = y * 2;
             z.tanh_();
             auto w = z + 1;
             w.clamp_(-1, 1.5).mul_(z);
             auto v = x[0] * x[1];
             v.copy_(x[1]);
             return Tensors{y, z, w, v, (x[0] * x[1]).fill_(2) * x[0], at::zeros_like(y).add_(y)};
         }},
        {"in place with three operands",
         [](auto& x) {
             auto y = x[0] + x[1];
             y.addcmul_(x[0], x[1], 0.5);
             auto z = y * 1;
             z.lerp_(x[0].expand_as(z), 0.25);
             auto w = z * 1;
             w.masked_fill_(w > 1, 0).relu_();
             return Tensors{y, z, w};
         }},
        {"in place on sums",
         [](auto& x) {
             auto s = x[0].sum(0);
             s.add_(1);
             s.mul_(2);
             auto t = s.exp();
             s.detach().sigmoid_();
             return Tensors{t, x[1] * 2};
         }},
        {"sums of sums",
         [](auto& x) {
             return Tensors{x[0].sum() * 2 + x[1].sum(), (x[0].sum(0) - x[1].mean()) / 3,
                            at::where(x[0].detach().sum() > 0, x[0].sum(), x[1].sum())};
         }},
    };
    return all;
}

TEST(Pointwise, EqualsThePlainOperators)
{
    check_rule(
        [](Draw& draw) {
            const auto& [name, function] = draw.pick(pointwise_operators());
            std::vector<std::int64_t> shape;
            for (auto k = draw.integer(1, 3); k > 0; --k) shape.push_back(draw.integer(1, 5));
            auto other = shape;
            if (draw.chance(0.5)) other[draw.integer(0, static_cast<std::int64_t>(other.size()) - 1)] = 1;
            if (draw.chance(0.2)) other.erase(other.begin());
            const bool in_place = std::string(name).starts_with("in place");
            return RuleCase{
                name, {draw.values(shape), draw.values(in_place || draw.chance(0.5) ? shape : other)}, function, {}};
        },
        {.num_cases = 600, .tolerance = 1e-10, .gathers = {{"aten::view", "", "a shape that cannot keep the cut"}}});
}

TEST(Pointwise, OneRowCountsAsCutAlongAnyDimension)
{
    run_ranks(2, [](const auto& mesh) {
        const auto whole = at::arange(8, at::kDouble).view({1, 1, 2, 4});
        const bool is_first = mesh->coordinate(0) == 0;
        const auto by_rows = from_local(whole.narrow(1, 0, is_first ? 1 : 0), mesh, {Shard(1)});
        const auto by_columns = from_local(whole.narrow(3, 0, is_first ? 4 : 0), mesh, {Shard(3)});

        const auto gradient =
            at::gelu_backward(by_columns, by_rows);  // LibTorch wants two operands of one shape, empty ones too

        EXPECT_TRUE(at::equal(full_tensor(gradient), at::gelu_backward(whole, whole)));
        EXPECT_TRUE(at::equal(full_tensor(by_rows + by_columns), whole * 2));
    });
}

}  // namespace
}  // namespace meshard
