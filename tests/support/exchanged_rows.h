// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/rows/ghost_exchange.h"

#include <ATen/ATen.h>

#include <memory>
#include <utility>
#include <vector>

namespace meshard::test {

/// Numbers of which any rank knows those of the others.
inline at::Tensor field_of(int rank, std::int64_t rows, std::int64_t width, at::ScalarType type)
{
    return at::arange(rows * width, at::kLong).mul(7).add(1000 * rank).remainder(9973).to(type).view({rows, width});
}

/// Rows of `from` that rank `to` gets: `count` of 2 `count` + 3, in an order that depends on both.
inline at::Tensor rows_for(int from, int to, std::int64_t count)
{
    return at::arange(count, at::kLong).mul(2 + (from + to) % 2).add(to).remainder(2 * count + 3).flip(0);
}

/// Every rank has something for all others, more for those that follow it; rank `without`, unless negative, has nothing
/// to do with any.
struct ExchangePattern {
    ExchangePattern(const RankGroup& group, std::int64_t rows, int without)
        : rows(rows), without(without), rank(group.rank()), size(group.size())
    {
    }

    std::int64_t count(int from, int to) const
    {
        return from == to || from == without || to == without ? 0 : rows / (1 + (to - from + size) % size);
    }
    std::int64_t num_owned() const { return 2 * rows + 3; }

    std::shared_ptr<const ExchangePlan> plan(const RankGroup& group) const
    {
        std::vector<std::int64_t> sent, send, receive;
        for (int r = 0; r < size; ++r) {
            const auto picked = rows_for(rank, r, count(rank, r));
            sent.insert(sent.end(), picked.const_data_ptr<std::int64_t>(),
                        picked.const_data_ptr<std::int64_t>() + picked.numel());
            send.push_back(count(rank, r));
            receive.push_back(count(r, rank));
        }
        return std::make_shared<const ExchangePlan>(group, num_owned(), std::move(sent), std::move(send),
                                                    std::move(receive));
    }

    at::Tensor expected(std::int64_t width, at::ScalarType type, int shift) const
    {
        std::vector<at::Tensor> parts;
        for (int r = 0; r < size; ++r)
            parts.push_back(
                field_of(r + shift, num_owned(), width, type).index_select(0, rows_for(r, rank, count(r, rank))));
        return at::cat(parts);
    }

    std::int64_t rows;
    int without, rank, size;
};

/// Exchanges of many kinds and sizes over a group, large and small ones, several at once: what was received, and what
/// indexing gives.
inline std::vector<std::pair<at::Tensor, at::Tensor>> exchanged_rows(const RankGroup& group)
{
    const int size = group.size(), rank = group.rank();
    std::vector<std::pair<at::Tensor, at::Tensor>> kept;  // of all exchanges: none may write to another's
    for (const std::int64_t rows : {0, 1, 1000, 15'000}) {
        for (const int without : {-1, size - 1}) {
            const ExchangePattern pattern(group, rows, without);
            const auto plan = pattern.plan(group);
            const auto field = [&](std::int64_t width, at::ScalarType type, int shift) {
                return field_of(rank + shift, pattern.num_owned(), width, type);
            };

            kept.emplace_back(exchange_ghosts(field(64, at::kFloat, 0), plan), pattern.expected(64, at::kFloat, 0));
            kept.emplace_back(exchange_ghosts(field(3, at::kDouble, 0), plan), pattern.expected(3, at::kDouble, 0));
            kept.emplace_back(exchange_ghosts(field(1, at::kByte, 0), plan), pattern.expected(1, at::kByte, 0));

            // Several fields in one message, and three exchanges at once that end in another order than they began.
            auto first = begin_ghost_exchange({field(64, at::kFloat, 1), field(5, at::kLong, 2)}, plan);
            auto second = begin_ghost_exchange({field(64, at::kFloat, 3)}, plan);
            auto reduced = begin_ghost_exchange({field(64, at::kFloat, 4)}, plan, at::kBFloat16);
            kept.emplace_back(reduced.end()[0], pattern.expected(64, at::kFloat, 4).to(at::kBFloat16).to(at::kFloat));
            kept.emplace_back(second.end()[0], pattern.expected(64, at::kFloat, 3));
            const auto both = first.end();
            kept.emplace_back(both[0], pattern.expected(64, at::kFloat, 1));
            kept.emplace_back(both[1], pattern.expected(5, at::kLong, 2));

            // Backward adds to the owners: of ones, how often each row was sent.
            auto owned = field(16, at::kDouble, 0).set_requires_grad(true);
            std::vector<std::int64_t> times(pattern.num_owned(), 0);
            for (int r = 0; r < size; ++r) {
                const auto picked = rows_for(rank, r, pattern.count(rank, r));
                for (std::int64_t i = 0; i < picked.numel(); ++i) ++times[picked.const_data_ptr<std::int64_t>()[i]];
            }
            exchange_ghosts(owned, plan).sum().backward();
            kept.emplace_back(owned.grad(), at::tensor(times, at::kDouble).view({-1, 1}).expand({-1, 16}));
        }
    }
    return kept;
}

}  // namespace meshard::test
