// SPDX-License-Identifier: Apache-2.0
// Operators that run as others, those that are pointwise without saying so, and losses entry by entry, against the
// plain operators; and that none of them makes a rank gather the whole.
#include "sharding/tensor/rule_table.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/rule_property.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace meshard {
namespace {

at::Tensor loss_weights(const at::Tensor& x)
{
    return x.detach().select(0, 0).abs() + 0.5;
}

/// Of two tensors of one shape (n, m), m even.
const std::vector<NamedOperator>& composed_operators()
{
    static const std::vector<NamedOperator> all{
        {"glu", [](auto& x) { return Tensors{at::glu(x[0], -1), at::glu(at::cat({x[0], x[1]}), 0)}; }},
        {"addr",
         [](auto& x) {
             return Tensors{at::addr(x[0], x[1].select(1, 0), x[1].select(0, 0), 0.5, 2),
                            at::addr(x[0], x[1].select(1, 0), x[1].select(0, 0), 0)};
         }},
        {"addbmm",
         [](auto& x) {
             return Tensors{
                 at::addbmm(x[0].narrow(0, 0, 1).narrow(1, 0, 1), x[0].unsqueeze(1),
                            x[1].t().unsqueeze(0).expand({x[0].size(0), -1, -1}).contiguous().narrow(2, 0, 1), 0.5)};
         }},
        {"dist", [](auto& x) { return Tensors{at::dist(x[0], x[1]), at::dist(x[0], x[1], 3)}; }},
        {"isin",
         [](auto& x) {
             const auto k = x[0].mul(3).to(at::kLong);
             return Tensors{at::isin(k, x[1].mul(3).to(at::kLong)), at::isin(k, at::tensor({0, 2}, at::kLong)),
                            x[0] * 2};
         }},
        {"trace and diagonals",
         [](auto& x) {
             return Tensors{x[0].trace(), x[0].diagonal(), x[0].diagonal(1) * 2, x[0].diagonal(-1),
                            at::diagonal(x[0] * x[1], 2, 1, 0)};
         }},
        {"diagonal of a batch",
         [](auto& x) {
             const auto y = x[0].unsqueeze(2) * x[1].unsqueeze(1);
             return Tensors{y.diagonal(0, 1, 2), y.diagonal(1, 0, 1), y.diagonal(-1, 2, 0)};
         }},
        {"products in place",
         [](auto& x) {
             auto y = x[0] * 1;
             y.addmm_(x[1], x[0].t().matmul(x[1]), 0.5, 2);
             auto v = x[0].select(1, 0) * 1;
             v.addmv_(x[0], x[1].select(0, 0));
             auto c = x[1] * 1;
             c.cumsum_(0);
             return Tensors{y, v, c};
         }},
        {"pointwise without a tag",
         [](auto& x) {
             return Tensors{at::leaky_relu(x[0], 0.2),
                            at::hardswish(x[0]),
                            at::hardsigmoid(x[0]),
                            at::hardtanh(x[0]),
                            at::hardshrink(x[0]),
                            at::rsub(x[0], x[1]),
                            at::floor_divide(x[0].detach(), x[1].detach().abs() + 1),
                            at::fake_quantize_per_tensor_affine(x[0], 0.1, 0, -128, 127)};
         }},
        {"pointwise in place without a tag",
         [](auto& x) {
             auto a = x[0] * 1, b = x[0] * 2, c = x[0] * 3, d = x[1] * 1, e = x[1] * 2, f = x[1] * 3, g = x[0] + x[1];
             at::leaky_relu_(a), at::hardswish_(b), at::hardsigmoid_(c), at::elu_(d), at::celu_(e), at::gelu_(f),
                 at::threshold_(g, 0.1, 0.2);
             auto h = x[0].detach() * 1, k = x[0].detach() * 1;
             return Tensors{a, b, c, d, e, f, g, h.gt_(x[1].detach()), k.copysign_(x[1].detach())};
         }},
        {"complex views",
         [](auto& x) {
             const auto z = at::view_as_complex(at::stack({x[0], x[1]}, -1));
             const auto w = z * z.conj() + z.conj();
             return Tensors{at::view_as_real(w), w.abs(), at::view_as_real(z.transpose(0, 1)),
                            at::real(at::polar(x[0].abs(), x[1]))};
         }},
        // Sharded ones as GPUs compute them, in one kernel; plain ones as LibTorch composes them on CPUs.
        {"cells of recurrent networks",
         [](auto& x) {
             const auto m = x[0].size(1);
             const auto weights = [&](std::int64_t rows, double step) {
                 return at::arange(rows * m, x[0].options().requires_grad(false)).mul(step).sin_().view({rows, m});
             };
             const auto bias = [&](std::int64_t gates) { return x[1].select(0, 0).repeat({gates}) * 0.5; };
             const auto three = at::cat({x[0], x[1], x[0] * x[1]}, 1),
                        four = at::cat({x[1], x[0], x[0] - x[1], x[0]}, 1);
             const auto& state = x[1];
             const auto same = [&](const at::Tensor& gates) {
                 return at::eye(gates.size(1), x[0].options().requires_grad(false));
             };
             if (!is_sharded(state) && state.is_cpu()) {
                 const auto [hy, cy] = at::lstm_cell(four, {x[0], state}, same(four), weights(4 * m, 0.3));
                 const auto biased =
                     at::lstm_cell(four, {x[0], state}, same(four), weights(4 * m, 0.3), bias(4), -bias(4) * 3);
                 return Tensors{at::gru_cell(three, state, same(three), weights(3 * m, 0.7)),
                                at::gru_cell(three, state, same(three), weights(3 * m, 0.7), bias(3), bias(3) * 2),
                                hy,
                                cy,
                                std::get<0>(biased),
                                std::get<1>(biased)};
             }
             const auto three_hidden = state.matmul(weights(3 * m, 0.7).t()),
                        four_hidden = x[0].matmul(weights(4 * m, 0.3).t());
             const auto [hy, cy, kept] = at::_thnn_fused_lstm_cell(four, four_hidden, state);
             const auto biased = at::_thnn_fused_lstm_cell(four, four_hidden, state, bias(4), -bias(4) * 3);
             return Tensors{std::get<0>(at::_thnn_fused_gru_cell(three, three_hidden, state)),
                            std::get<0>(at::_thnn_fused_gru_cell(three, three_hidden, state, bias(3), bias(3) * 2)),
                            hy,
                            cy,
                            std::get<0>(biased),
                            std::get<1>(biased)};
         }},
        {"losses by entries",
         [](auto& x) {
             const auto p = x[0].sigmoid(), t = x[1].detach().gt(0).to(x[0].scalar_type()), w = loss_weights(x[1]);
             return Tensors{at::binary_cross_entropy(p, t),
                            at::binary_cross_entropy(p, t, w.expand_as(p), at::Reduction::Sum),
                            at::binary_cross_entropy(p, t, {}, at::Reduction::None),
                            at::binary_cross_entropy_with_logits(x[0], t, w, w + 1),
                            at::binary_cross_entropy_with_logits(x[0], t, {}, {}, at::Reduction::Sum),
                            at::soft_margin_loss(x[0], t * 2 - 1),
                            at::soft_margin_loss(x[0], t * 2 - 1, at::Reduction::None)};
         }},
        {"rows filled and copied",
         [](auto& x) {
             const auto n = x[0].size(0), m = x[0].size(1);
             const auto rows = at::arange(0, n, 2, at::kLong).flip(0),
                        columns = at::tensor({m - 1, std::int64_t{0}}, at::kLong);
             auto filled = x[0] * 1;
             filled.index_fill_(0, rows, 0.5);
             return Tensors{at::index_fill(x[0], 1, columns - m, 2),
                            filled,
                            at::index_copy(x[0], 0, rows, x[1].narrow(0, 0, rows.size(0))),
                            at::index_copy(x[0], 1, columns, x[1].narrow(1, 0, 2)),
                            at::index_reduce(x[0].detach(), 0, at::zeros({n}, at::kLong), x[1].detach(), "amax"),
                            at::index_reduce(x[0].detach(), 1, columns, x[1].detach().narrow(1, 0, 2), "mean")};
         }},
    };
    return all;
}

TEST(Composed, EqualThePlainOperators)
{
    check_rule(
        [](Draw& draw) {
            const std::vector<std::int64_t> shape{draw.integer(1, 7), 2 * draw.integer(1, 3)};
            const auto& [name, function] = draw.pick(composed_operators());
            return RuleCase{name, {draw.values(shape), draw.values(shape)}, function, {}};
        },
        {.num_cases = 400,
         .gathers = {
             {"aten::diagonal_backward", "", kNoRule},
             {"aten::diagonal|aten::mv|aten::mm|aten::bmm|aten::addmm|aten::addmv|aten::index_copy|aten::index_reduce",
              "second", kTwoAxes}}});
}

TEST(Composed, CrossProductsEqualThePlainOnes)
{
    check_rule(
        [](Draw& draw) {
            std::vector<std::int64_t> shape{draw.integer(1, 6), draw.integer(1, 4), draw.integer(1, 4)};
            const auto dim = draw.integer(0, 2);
            shape[dim] = 3;
            return RuleCase{"cross",
                            {draw.values(shape), draw.values(shape)},
                            [dim](const Tensors& x) {
                                return Tensors{at::linalg_cross(x[0], x[1], dim - 3), at::cross(x[0], x[1], dim)};
                            },
                            {}};
        },
        {.num_cases = 200});
}

/// The part of the whole that a rank of three holds: 5, 1 and the other rows.
at::Tensor cut(const at::Tensor& whole, std::int64_t dim, const std::shared_ptr<const DeviceMesh>& mesh)
{
    const Extents extents{5, 1, whole.size(dim) - 6};
    const auto spec = make_spec(mesh, {AxisLayout{Shard(dim), std::make_shared<Extents>(extents), 1}});
    const auto rank = mesh->coordinate(0);
    return from_local(whole.narrow(dim, rank == 0 ? 0 : rank == 1 ? 5 : 6, extents[rank]).clone(), spec);
}

TEST(Composed, NoRankGathersTheWhole)
{
    const auto whole = at::randn({12, 8}, at::kDouble);
    for (const char* name :
         {"glu", "addr", "dist", "trace and diagonals", "pointwise without a tag", "pointwise in place without a tag",
          "complex views", "losses by entries", "rows filled and copied"}) {
        const auto found = std::find_if(composed_operators().begin(), composed_operators().end(),
                                        [&](const auto& op) { return std::string(op.name) == name; });
        run_ranks(3, [&](std::shared_ptr<const DeviceMesh> mesh) {
            set_gather_policy(GatherPolicy::Refuse);
            EXPECT_NO_THROW(found->function({cut(whole, 0, mesh), cut(whole.sin(), 0, mesh)})) << name;
        });
    }
}

/// What is not contiguous keeps its order through operators that LibTorch cannot run without memory, and through
/// conversions that name a device.
TEST(Composed, PermutedOperandsKeepTheirStrides)
{
    const auto whole = at::randn({12, 7, 3}, at::kDouble);
    const auto function = [](const at::Tensor& x) {
        const auto y = x.permute({2, 0, 1});
        return Tensors{y.abs(),
                       y.isnan().logical_not(),
                       at::where(y > 0, y, -y),
                       at::nan_to_num(y),
                       y.to(at::kCPU, at::kFloat),
                       at::floor_divide(y, 2),
                       y.logical_and(y > 0),
                       at::sgn(y)};
    };
    const auto expected = function(whole);
    run_ranks(3, [&](std::shared_ptr<const DeviceMesh> mesh) {
        const auto found = function(cut(whole, 1, mesh));
        for (std::size_t i = 0; i < expected.size(); ++i) {
            EXPECT_EQ(found[i].strides(), expected[i].strides()) << i;
            EXPECT_TRUE(at::equal(full_tensor(found[i]), expected[i])) << i;
        }
    });
}

TEST(Composed, WindowsOfContiguousMemoryAreAnUnfold)
{
    const auto whole = at::randn({7, 20}, at::kDouble);
    const auto expected = whole.as_strided({7, 5, 4}, {20, 3, 1});
    run_ranks(3, [&](std::shared_ptr<const DeviceMesh> mesh) {
        for (const std::int64_t dim : {0, 1}) {
            const auto view = cut(whole, dim, mesh).view({1, 7, 20}).view({7, 20});  // a view of all of it
            EXPECT_TRUE(at::equal(full_tensor(view.as_strided({7, 5, 4}, {20, 3, 1})), expected)) << dim;
        }
        set_gather_policy(GatherPolicy::Refuse);
        EXPECT_NO_THROW(cut(whole, 0, mesh).as_strided({7, 5, 4}, {20, 3, 1}));
    });
}

}  // namespace
}  // namespace meshard
