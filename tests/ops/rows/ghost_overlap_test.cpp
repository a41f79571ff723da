// SPDX-License-Identifier: Apache-2.0
// Exchanges over shared memory, where messages go on while the program computes. Ranks are threads, each with a backend
// of its own.
#include "ops/rows/ghost_exchange.h"
#include "partition/error.h"
#include "sharding/tensor/with_backward.h"
#include "sharding/transport/shared_memory_backend.h"
#include "tests/support/exchanged_rows.h"
#include "tests/support/expect_tensors.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <chrono>
#include <future>
#include <thread>

namespace meshard {
namespace {

using test::field_of;

void run_groups(int size, const std::function<void(const RankGroup&)>& body)
{
    const auto store = c10::make_intrusive<c10d::HashStore>();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
        threads.emplace_back([&, rank] {
            at::set_num_threads(1);
            const auto backend =
                connect_shared_memory(store, rank, size, std::chrono::seconds(30), [](int) { return false; });
            ASSERT_TRUE(backend);
            body(RankGroup(backend, "domain", std::make_shared<CommCounter>()));
        });
    }
    for (auto& thread : threads) thread.join();
}

/// Of 2 n own rows the odd ones, the last first, go to the next rank.
std::shared_ptr<const ExchangePlan> plan_of(const RankGroup& group, std::int64_t n)
{
    std::vector<std::int64_t> rows(n), send(group.size(), 0), receive(group.size(), 0);
    for (std::int64_t i = 0; i < n; ++i) rows[i] = 2 * (n - i) - 1;
    send[(group.rank() + 1) % group.size()] = n;
    receive[(group.rank() + group.size() - 1) % group.size()] = n;
    return std::make_shared<const ExchangePlan>(group, 2 * n, std::move(rows), std::move(send), std::move(receive));
}

TEST(GhostOverlap, ExchangesEqualIndexing)
{
    for (const int size : {2, 3, 5}) {
        run_groups(size, [&](const RankGroup& group) {
            const auto exchanges = test::exchanged_rows(group);
            for (std::size_t i = 0; i < exchanges.size(); ++i) {
                EXPECT_TRUE(at::equal(exchanges[i].first, exchanges[i].second))
                    << "exchange " << i << " of " << size << " ranks";
            }
        });
    }
}

TEST(GhostOverlap, RowsArePickedOutWhileTheyAreSent)
{
    for (const int size : {2, 3}) {
        for (const std::int64_t n : {0, 1, 1000, 20'011}) {  // the last is larger than what lies in memory at once
            run_groups(size, [&](const RankGroup& group) {
                const auto plan = plan_of(group, n);
                const auto before = (group.rank() + size - 1) % size;
                const auto of = [&](int rank, std::int64_t width, at::ScalarType type) {
                    return field_of(rank, 2 * n, width, type);
                };
                const auto sent_before = at::arange(n, at::kLong).mul(-2).add(2 * n - 1);

                const auto one = exchange_ghosts(of(group.rank(), 33, at::kFloat), plan);
                const auto several =
                    begin_ghost_exchange({of(group.rank(), 3, at::kFloat), of(group.rank(), 1, at::kLong),
                                          of(group.rank(), 5, at::kDouble)},
                                         plan)
                        .end();
                const auto narrow = begin_ghost_exchange({of(group.rank(), 4, at::kFloat)}, plan, at::kHalf).end();

                EXPECT_TRUE(at::equal(one, of(before, 33, at::kFloat).index_select(0, sent_before)));
                EXPECT_TRUE(at::equal(several[0], of(before, 3, at::kFloat).index_select(0, sent_before)));
                EXPECT_TRUE(at::equal(several[1], of(before, 1, at::kLong).index_select(0, sent_before)));
                EXPECT_TRUE(at::equal(several[2], of(before, 5, at::kDouble).index_select(0, sent_before)));
                EXPECT_TRUE(at::equal(narrow[0], of(before, 4, at::kHalf).to(at::kFloat).index_select(0, sent_before)));
            });
        }
    }
}

TEST(GhostOverlap, MessagesGoOnWhileNobodyWaits)
{
    run_groups(2, [](const RankGroup& group) {
        constexpr std::int64_t kRows = 100'000;  // 25 MB; one look moves 2 MB at most
        const auto plan = plan_of(group, kRows);
        const auto field = field_of(group.rank(), 2 * kRows, 64, at::kFloat);

        auto pending = begin_ghost_exchange({field}, plan);

        bool has_come = false;
        for (int look = 0; look < 7 && !has_come; ++look) {
            std::this_thread::sleep_for(std::chrono::milliseconds(50 << look));
            has_come = pending.is_done();
        }
        EXPECT_TRUE(has_come);
        EXPECT_TRUE(
            at::equal(pending.end()[0],
                      field_of(1 - group.rank(), 2 * kRows, 64, at::kFloat).index_select(0, plan->sent_rows())));
    });
}

TEST(GhostOverlap, GradientsOfInteriorWorkAreFoundWhileThoseOfGhostsTravel)
{
    std::promise<void> interior_is_done;
    const auto done = interior_is_done.get_future().share();
    run_groups(2, [&](const RankGroup& group) {
        const auto plan = plan_of(group, 10);
        auto x = field_of(group.rank(), 20, 2, at::kDouble).requires_grad_();
        auto pending = begin_ghost_exchange({x}, plan);
        const auto interior = with_backward(x.detach() * 3, x, "InteriorBackward", [&](const at::Tensor& gradient) {
            if (group.rank() == 0) interior_is_done.set_value();
            return gradient * 3;
        });
        const auto loss = interior.sum() + pending.end()[0].sum();

        // The other rank's gradients start when the first has been through its interior: it must not have waited for
        // them.
        if (group.rank() == 1) {
            EXPECT_EQ(done.wait_for(std::chrono::seconds(20)), std::future_status::ready);
        }
        loss.backward();

        auto expected = at::full({20, 2}, 3.0, at::kDouble);
        expected.index_add_(0, plan->sent_rows(), at::ones({10, 2}, at::kDouble));
        EXPECT_TRUE(at::equal(x.grad(), expected));
    });
}

}  // namespace
}  // namespace meshard
