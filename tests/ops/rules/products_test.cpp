// SPDX-License-Identifier: Apache-2.0
// Matrix products of operands that lie in any way, against the plain operators.
#include "sharding/tensor/rule_table.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/rule_property.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace meshard {
namespace {

struct Product {
    const char* name;
    std::vector<std::vector<std::int64_t>> shapes;
    OperatorFunction function;
};

TEST(Products, EqualThePlainOperators)
{
    check_rule(
        [](Draw& draw) {
            const auto b = draw.integer(1, 4), m = draw.integer(1, 7), k = draw.integer(1, 6), n = draw.integer(1, 6),
                       c = draw.integer(1, 3);
            const std::vector<Product> operators{
                {"mm", {{m, k}, {k, n}}, [](auto& x) { return Tensors{at::mm(x[0], x[1])}; }},
                {"matmul", {{b, m, k}, {k, n}}, [](auto& x) { return Tensors{at::matmul(x[0], x[1])}; }},
                {"matmul with batches",
                 {{b, 1, m, k}, {c, k, n}},
                 [](auto& x) { return Tensors{at::matmul(x[0], x[1])}; }},
                {"matrix and vector",
                 {{m, k}, {k}},
                 [](auto& x) { return Tensors{at::matmul(x[0], x[1]), at::matmul(x[1], x[0].t())}; }},
                {"bmm", {{b, m, k}, {b, k, n}}, [](auto& x) { return Tensors{at::bmm(x[0], x[1])}; }},
                {"dot", {{k}, {k}}, [](auto& x) { return Tensors{at::dot(x[0], x[1]), at::inner(x[0], x[1])}; }},
                {"outer", {{m}, {n}}, [](auto& x) { return Tensors{at::outer(x[0], x[1])}; }},
                {"linear",
                 {{b, m, k}, {n, k}, {n}},
                 [](auto& x) { return Tensors{at::linear(x[0], x[1], x[2]), at::linear(x[0], x[1])}; }},
                {"linear on rows",
                 {{m, k}, {n, k}, {n}},
                 [](auto& x) { return Tensors{at::linear(x[0], x[1], x[2])}; }},
                {"addmm",
                 {{m, n}, {m, k}, {k, n}},
                 [](auto& x) {
                     return Tensors{at::addmm(x[0], x[1], x[2], 0.5, 2), at::addmm(x[0], x[1], x[2], 0, 3)};
                 }},
                {"addmm with a row",
                 {{n}, {m, k}, {k, n}},
                 [](auto& x) { return Tensors{at::addmm(x[0], x[1], x[2], 2, 0.5)}; }},
                {"baddbmm",
                 {{b, m, n}, {b, m, k}, {b, k, n}},
                 [](auto& x) { return Tensors{at::baddbmm(x[0], x[1], x[2], 0.5, 2)}; }},
                {"addbmm",
                 {{m, n}, {b, m, k}, {b, k, n}},
                 [](auto& x) { return Tensors{at::addbmm(x[0], x[1], x[2], 0.5, 2)}; }},
                {"addmv", {{m}, {m, k}, {k}}, [](auto& x) { return Tensors{at::addmv(x[0], x[1], x[2], 0.5, 2)}; }},
                {"addr", {{m, n}, {m}, {n}}, [](auto& x) { return Tensors{at::addr(x[0], x[1], x[2], 0.5, 2)}; }},
                {"in place",
                 {{m, n}, {m, k}, {k, n}},
                 [](auto& x) {
                     auto y = x[0] * 1;
                     y.addmm_(x[1], x[2]);
                     return Tensors{y * 2};
                 }},
                {"einsum",
                 {{b, m, k}, {b, n, k}},
                 [](auto& x) {
                     return Tensors{at::einsum("bmk,bnk->bmn", {x[0], x[1]}), at::einsum("bmk,bnk->mn", {x[0], x[1]})};
                 }},
                {"einsum over rows",
                 {{b, m, c, k}, {b, m, c, n}},
                 [](auto& x) { return Tensors{at::einsum("bmck,bmcn->bckn", {x[0], x[1]})}; }},
                {"bilinear",
                 {{b, k}, {b, n}, {c, k, n}},
                 [](auto& x) { return Tensors{at::bilinear(x[0], x[1], x[2])}; }},
                {"tensordot",
                 {{b, m, k}, {k, n}},
                 [](auto& x) { return Tensors{at::tensordot(x[0], x[1], {2}, {0})}; }},
                {"kron", {{m, k}, {c, c}}, [](auto& x) { return Tensors{at::kron(x[0], x[1])}; }},
                {"cdist", {{b, m, k}, {b, n, k}}, [](auto& x) { return Tensors{at::cdist(x[0], x[1] + 5)}; }},
                {"pending factors",
                 {{m, k}, {m, n}},
                 [](auto& x) {
                     const auto s = at::mm(x[0].t(), x[1]);
                     return Tensors{at::mm(x[0], s), at::addmm(s, s, at::mm(x[1].t(), x[1]), 2, 0.5)};
                 }},
                {"chained",
                 {{m, k}, {k, n}, {n, k}},
                 [](auto& x) {
                     return Tensors{at::linalg_multi_dot({x[0], x[1], x[2]}), at::chain_matmul({x[0], x[1]})};
                 }},
            };
            const auto& [name, shapes, function] = draw.pick(operators);
            RuleCase item{name, {}, function, {}};
            for (const auto& shape : shapes) item.inputs.push_back(draw.values(shape));
            return item;
        },
        {.num_cases = 600,
         .tolerance = 1e-10,
         .gathers = {{"aten::_trilinear", "", kNoRule},
                     {"aten::(mm|bmm|dot|mv|addmv|addmm|view|_unsafe_view)", "second", kTwoAxes}}});
}

/// Of matrices (b, n, 3, 3), as a model meets them at its points; those that must be regular are.
const std::vector<NamedOperator>& of_small_matrices()
{
    static const auto regular = [](const at::Tensor& x) { return x + at::eye(3, x.scalar_type()) * 5; };
    static const auto symmetric = [](const at::Tensor& x) {
        return at::matmul(x, x.transpose(-1, -2)) + at::eye(3, x.scalar_type());
    };
    static const std::vector<NamedOperator> all{
        {"det", [](auto& x) { return Tensors{at::linalg_det(x[0]), std::get<1>(at::linalg_slogdet(x[1]))}; }},
        {"inverse", [](auto& x) { return Tensors{at::linalg_inv(regular(x[0]))}; }},
        {"solve",
         [](auto& x) {
             return Tensors{at::linalg_solve(regular(x[0]), x[1]), at::linalg_solve(regular(x[0]), x[1].select(-1, 0))};
         }},
        {"cholesky", [](auto& x) { return Tensors{at::linalg_cholesky(symmetric(x[0]))}; }},
        {"eigenvalues",
         [](auto& x) {
             return Tensors{at::linalg_eigvalsh(symmetric(x[0])), std::get<0>(at::linalg_eigh(symmetric(x[1])))};
         }},
        {"singular values",
         [](auto& x) {
             return Tensors{at::linalg_svdvals(regular(x[0])), std::get<1>(at::linalg_svd(regular(x[1])))};
         }},
        {"LU",
         [](auto& x) {
             const auto [factors, pivots] = at::linalg_lu_factor(regular(x[0]));
             return Tensors{factors, pivots, at::linalg_lu_solve(factors, pivots, x[1])};
         }},
        {"QR",
         [](auto& x) {
             const auto [q, r] = at::linalg_qr(regular(x[0]));
             return Tensors{q, r};
         }},
        {"triangles", [](auto& x) { return Tensors{at::linalg_solve_triangular(regular(x[0]).tril(), x[1], false)}; }},
        {"exponential", [](auto& x) { return Tensors{at::linalg_matrix_exp(x[0] * 0.3)}; }},
    };
    return all;
}

TEST(SmallMatrices, EqualThePlainOperators)
{
    check_rule(
        [](Draw& draw) {
            const auto& [name, function] = draw.pick(of_small_matrices());
            const std::vector<std::int64_t> shape{draw.integer(1, 3), draw.integer(1, 6), 3, 3};
            return RuleCase{name, {draw.values(shape), draw.values(shape)}, function, {}};
        },
        {.num_cases = 200,
         .tolerance = 1e-9,
         .gathers = {{"aten::(_?linalg_.*|lu_unpack|diag_embed)", "Shard\\([1-3]|second", "a cut through the matrices"},
                     {"aten::copy_", "^plain", "the exponential's gradient fills a plain tensor"},
                     {"aten::(bmm|view|diagonal)", "second|Shard.*Shard", kTwoAxes}}});
}

TEST(SmallMatrices, OfCutPointsStayThere)
{
    run_ranks(3, [](const auto& mesh) {
        set_gather_policy(GatherPolicy::Refuse);
        const auto points = std::int64_t{2} * mesh->coordinate(0);  // none on the first rank
        for (const auto& [name, function] : of_small_matrices()) {
            if (std::string(name) == "exponential") continue;
            const auto x = from_local(at::randn({2, points, 3, 3}, at::kDouble), mesh, {Shard(1)}).requires_grad_();
            at::Tensor total;
            for (const auto& result : function({x, x * 2})) {
                EXPECT_EQ(spec_of(result)->axes[0].placement.dim, 1) << name;
                if (result.requires_grad()) total = total.defined() ? total + result.sum() : result.sum();
            }
            EXPECT_NO_THROW(total.backward()) << name;
            EXPECT_EQ(local_of(x.grad()).size(1), points) << name;
        }
        set_gather_policy(GatherPolicy::Warn);
    });
}

TEST(SmallMatrices, WithoutAnInverseAreRefusedOnEveryRank)
{
    run_ranks(2, [](const auto& mesh) {
        const bool is_first = mesh->coordinate(0) == 0;
        const auto x = from_local(at::eye(3, at::kDouble).expand({4, 3, 3}) * (is_first ? 1 : 0), mesh, {Shard(0)});
        set_gather_policy(GatherPolicy::Silent);
        EXPECT_THROW(at::linalg_inv(x), c10::Error);
    });
}

}  // namespace
}  // namespace meshard
