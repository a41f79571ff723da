// SPDX-License-Identifier: Apache-2.0
// Matrix products of operands that lie in any way, against the plain operators.
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "sharding/shard_tensor.h"
#include "tests/support/rule_property.h"

namespace meshard {
namespace {

struct Product {
    const char* name;
    std::vector<std::vector<std::int64_t>> shapes;
    OperatorFunction function;
};

TEST(Products, EqualThePlainOperators)
{
    check_rule([](Draw& draw) {
        const auto b = draw.integer(1, 4), m = draw.integer(1, 7), k = draw.integer(1, 6), n = draw.integer(1, 6), c = draw.integer(1, 3);
        const std::vector<Product> operators{
            {"mm", {{m, k}, {k, n}}, [](auto& x) { return Tensors{at::mm(x[0], x[1])}; }},
            {"matmul", {{b, m, k}, {k, n}}, [](auto& x) { return Tensors{at::matmul(x[0], x[1])}; }},
            {"matmul with batches", {{b, 1, m, k}, {c, k, n}}, [](auto& x) { return Tensors{at::matmul(x[0], x[1])}; }},
            {"matrix and vector", {{m, k}, {k}}, [](auto& x) { return Tensors{at::matmul(x[0], x[1]), at::matmul(x[1], x[0].t())}; }},
            {"bmm", {{b, m, k}, {b, k, n}}, [](auto& x) { return Tensors{at::bmm(x[0], x[1])}; }},
            {"dot", {{k}, {k}}, [](auto& x) { return Tensors{at::dot(x[0], x[1]), at::inner(x[0], x[1])}; }},
            {"outer", {{m}, {n}}, [](auto& x) { return Tensors{at::outer(x[0], x[1])}; }},
            {"linear", {{b, m, k}, {n, k}, {n}}, [](auto& x) { return Tensors{at::linear(x[0], x[1], x[2]), at::linear(x[0], x[1])}; }},
            {"linear on rows", {{m, k}, {n, k}, {n}}, [](auto& x) { return Tensors{at::linear(x[0], x[1], x[2])}; }},
            {"addmm", {{m, n}, {m, k}, {k, n}}, [](auto& x) { return Tensors{at::addmm(x[0], x[1], x[2], 0.5, 2), at::addmm(x[0], x[1], x[2], 0, 3)}; }},
            {"addmm with a row", {{n}, {m, k}, {k, n}}, [](auto& x) { return Tensors{at::addmm(x[0], x[1], x[2], 2, 0.5)}; }},
            {"baddbmm", {{b, m, n}, {b, m, k}, {b, k, n}}, [](auto& x) { return Tensors{at::baddbmm(x[0], x[1], x[2], 0.5, 2)}; }},
            {"addbmm", {{m, n}, {b, m, k}, {b, k, n}}, [](auto& x) { return Tensors{at::addbmm(x[0], x[1], x[2], 0.5, 2)}; }},
            {"addmv", {{m}, {m, k}, {k}}, [](auto& x) { return Tensors{at::addmv(x[0], x[1], x[2], 0.5, 2)}; }},
            {"addr", {{m, n}, {m}, {n}}, [](auto& x) { return Tensors{at::addr(x[0], x[1], x[2], 0.5, 2)}; }},
            {"in place", {{m, n}, {m, k}, {k, n}}, [](auto& x) { auto y = x[0] * 1; y.addmm_(x[1], x[2]); return Tensors{y * 2}; }},
            {"einsum", {{b, m, k}, {b, n, k}}, [](auto& x) { return Tensors{at::einsum("bmk,bnk->bmn", {x[0], x[1]}), at::einsum("bmk,bnk->mn", {x[0], x[1]})}; }},
            {"einsum over rows", {{b, m, c, k}, {b, m, c, n}}, [](auto& x) { return Tensors{at::einsum("bmck,bmcn->bckn", {x[0], x[1]})}; }},
            {"bilinear", {{b, k}, {b, n}, {c, k, n}}, [](auto& x) { return Tensors{at::bilinear(x[0], x[1], x[2])}; }},
            {"tensordot", {{b, m, k}, {k, n}}, [](auto& x) { return Tensors{at::tensordot(x[0], x[1], {2}, {0})}; }},
            {"kron", {{m, k}, {c, c}}, [](auto& x) { return Tensors{at::kron(x[0], x[1])}; }},
            {"cdist", {{b, m, k}, {b, n, k}}, [](auto& x) { return Tensors{at::cdist(x[0], x[1] + 5)}; }},
            {"pending factors", {{m, k}, {m, n}}, [](auto& x) { const auto s = at::mm(x[0].t(), x[1]); return Tensors{at::mm(x[0], s), at::addmm(s, s, at::mm(x[1].t(), x[1]), 2, 0.5)}; }},
            {"chained", {{m, k}, {k, n}, {n, k}}, [](auto& x) { return Tensors{at::linalg_multi_dot({x[0], x[1], x[2]}), at::chain_matmul({x[0], x[1]})}; }},
        };
        const auto& [name, shapes, function] = draw.pick(operators);
        RuleCase item{name, {}, function, {}};
        for (const auto& shape : shapes) item.inputs.push_back(draw.values(shape));
        return item;
    }, {.num_cases = 600, .tolerance = 1e-10});
}

}  // namespace
}  // namespace meshard
