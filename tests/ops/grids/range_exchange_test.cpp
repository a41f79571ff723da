// SPDX-License-Identifier: Apache-2.0
#include "ops/grids/range_exchange.h"
#include "sharding/tensor/redistribute.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/rule_property.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace meshard {
namespace {

struct Exchange {
    Extents extents;
    std::vector<Range> needed;
    at::Tensor whole,
        gradients;  // gradients: one a rank, of the whole's shape; a rank's own is that of its needed range
    std::int64_t dim = 0;
};

Exchange draw_exchange(Draw& draw, std::int64_t ranks)
{
    Exchange exchange;
    const auto n = draw.integer(1, 9);
    exchange.dim = draw.integer(0, 2);
    std::vector<std::int64_t> shape{2, 3, 2};
    shape[exchange.dim] = n;
    exchange.whole = draw.values(shape);
    shape.insert(shape.begin(), ranks);
    exchange.gradients = draw.values(shape);
    std::int64_t left = n;
    for (std::int64_t r = 0; r < ranks; ++r) {
        exchange.extents.push_back(r + 1 == ranks ? left : draw.integer(0, left));
        left -= exchange.extents.back();
        const auto begin = draw.integer(0, n);
        exchange.needed.push_back({begin, draw.integer(begin, n)});
    }
    return exchange;
}

TEST(RangeExchange, BringsAnyRangeAndAddsItBack)
{
    for (const std::int64_t ranks : {1, 2, 3, 5}) {
        std::vector<Exchange> exchanges;
        Draw draw(static_cast<std::uint64_t>(ranks));
        for (int k = 0; k < 60; ++k) exchanges.push_back(draw_exchange(draw, ranks));
        run_ranks(static_cast<int>(ranks), [&](const auto& mesh) {
            for (const auto& item : exchanges) {
                const auto me = mesh->coordinate(0);
                const auto layout = AxisLayout{Shard(item.dim), std::make_shared<Extents>(item.extents), 1};
                const RangeExchange exchange(mesh->group(0), layout, item.needed);
                const auto local = narrow_to_shard(item.whole, layout, me);
                const auto part = [&](const at::Tensor& tensor, std::int64_t r) {
                    return tensor.narrow(item.dim, item.needed[r].begin, item.needed[r].size());
                };
                auto expected = at::zeros_like(item.whole);
                for (std::int64_t r = 0; r < ranks; ++r) part(expected, r).add_(part(item.gradients[r], r));

                const auto borrowed = exchange.borrow(local);
                const auto filled = exchange.borrow(local, 2, 1, 7.0);
                const auto returned = exchange.give_back(part(item.gradients[me], me));

                EXPECT_TRUE(at::equal(borrowed, part(item.whole, me)));
                std::vector<std::int64_t> pad(6, 0);
                pad[2 * (2 - item.dim)] = 2;
                pad[2 * (2 - item.dim) + 1] = 1;
                EXPECT_TRUE(at::equal(filled, at::constant_pad_nd(part(item.whole, me), pad, 7.0)));
                EXPECT_TRUE(tensors_near(returned, narrow_to_shard(expected, layout, me), 1e-14));
            }
        });
    }
}

TEST(RangeExchange, SendsNothingWhereNoRankMissesAnything)
{
    run_ranks(2, [](const auto& mesh) {
        const auto layout = AxisLayout{Shard(0), std::make_shared<Extents>(Extents{3, 2}), 1};
        const RangeExchange exchange(mesh->group(0), layout, {{1, 3}, {3, 3}});
        mesh->counter().reset();

        const auto rows = exchange.borrow(at::ones({mesh->coordinate(0) == 0 ? 3 : 2, 4}));

        EXPECT_EQ(rows.size(0), mesh->coordinate(0) == 0 ? 2 : 0);
        EXPECT_EQ(mesh->counter().num_calls(), 0);
    });
}

}  // namespace
}  // namespace meshard
