// SPDX-License-Identifier: Apache-2.0
#include "sharding/ranks/row_stream.h"
#include "sharding/transport/shared_memory_backend.h"
#include "tests/support/expect_error.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>

namespace meshard {
namespace {

using Body = std::function<void(c10d::Backend&, int)>;

/// Ranks as threads, each with a backend of its own.
void run_backends(
    int size, const Body& body, std::chrono::milliseconds limit = std::chrono::seconds(60),
    std::function<bool(int)> has_ended = [](int) { return false; })
{
    const auto store = c10::make_intrusive<c10d::HashStore>();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
        threads.emplace_back([&, rank] {
            at::set_num_threads(1);
            const auto backend = connect_shared_memory(store, rank, size, limit, has_ended);
            ASSERT_TRUE(backend);
            body(*backend, rank);
        });
    }
    for (auto& thread : threads) thread.join();
}

/// Whole numbers, so that sums are exact in any order.
at::Tensor numbers(std::int64_t n, int rank, at::ScalarType type)
{
    return at::arange(n, at::kLong).mul(7 + rank).add(3 * rank).remainder(101).to(type);
}

TEST(SharedMemoryBackend, ReducesAnySizeAndType)
{
    for (const int size : {2, 3, 5}) {
        run_backends(size, [&](c10d::Backend& backend, int rank) {
            for (const auto type : {at::kFloat, at::kDouble, at::kLong, at::kInt}) {
                for (const std::int64_t n : {1, 17, 16385, 100'003, 700'001}) {
                    for (const auto& op : {c10d::ReduceOp::SUM, c10d::ReduceOp::MAX, c10d::ReduceOp::MIN}) {
                        auto expected = numbers(n, 0, type);
                        for (int r = 1; r < size; ++r) {
                            const auto other = numbers(n, r, type);
                            expected = op == c10d::ReduceOp::SUM   ? expected + other
                                       : op == c10d::ReduceOp::MAX ? at::maximum(expected, other)
                                                                   : at::minimum(expected, other);
                        }
                        std::vector<at::Tensor> tensors{numbers(n, rank, type)};
                        c10d::AllreduceOptions options;
                        options.reduceOp = op;

                        backend.allreduce(tensors, options)->wait();

                        EXPECT_TRUE(at::equal(tensors[0], expected))
                            << size << " ranks, " << n << " of " << at::toString(type);
                    }
                }
            }
        });
    }
}

TEST(SharedMemoryBackend, GivesEveryRankTheSameBits)
{
    std::vector<at::Tensor> results(4);
    run_backends(4, [&](c10d::Backend& backend, int rank) {
        std::vector<at::Tensor> tensors{numbers(50'000, rank, at::kFloat).mul(0.1f).sin()};
        backend.allreduce(tensors, c10d::AllreduceOptions())->wait();
        results[rank] = tensors[0];
    });
    auto in_rank_order = numbers(50'000, 0, at::kFloat).mul(0.1f).sin();
    for (int r = 1; r < 4; ++r) in_rank_order.add_(numbers(50'000, r, at::kFloat).mul(0.1f).sin());
    for (const auto& result : results) EXPECT_TRUE(at::equal(result, in_rank_order));
}

TEST(SharedMemoryBackend, PropagatesNaNFromAnyRank)
{
    run_backends(2, [](c10d::Backend& backend, int rank) {
        std::vector<at::Tensor> tensors{at::full({3}, rank == 1 ? std::nan("") : 1.0)};
        c10d::AllreduceOptions options;
        options.reduceOp = c10d::ReduceOp::MAX;
        backend.allreduce(tensors, options)->wait();
        EXPECT_TRUE(tensors[0].isnan().all().item<bool>());
    });
}

TEST(SharedMemoryBackend, BringsRowsToAnyMemory)
{
    constexpr std::int64_t kWidth = 16;
    for (const std::int64_t many :
         {100, 6'000, 60'000}) {  // through the ring; straight to their place; past the caches
        run_backends(3, [&](c10d::Backend& backend, int rank) {
            auto& exchange = dynamic_cast<RowExchange&>(backend);
            const auto field = [](int r) {
                return at::arange(70'000 * kWidth, at::kInt).add(1'000'000 * r).view({-1, kWidth});
            };
            const auto rows = [&](int from, int to) {
                return at::arange(from == 1 && to == 2 ? 7 : many + to, at::kLong).add(from);
            };  // of one pair few
            std::vector<at::Tensor> index, expected;
            std::vector<std::int64_t> send, receive;
            for (int r = 0; r < 3; ++r) {
                index.push_back(rows(rank, r));
                expected.push_back(field(r).index_select(0, rows(r, rank)));
                send.push_back(index.back().numel() * kWidth * 4);
                receive.push_back(expected.back().numel() * 4);
            }
            const auto all = at::cat(expected);
            for (const bool asked : {true, false}) {
                const auto received = asked ? exchange.empty_received(all.sizes(), all.options()) : at::empty_like(all);
                exchange
                    .exchange_rows(RowStream({field(rank)}, at::cat(index)), send, received.view({-1}).view(at::kByte),
                                   receive)
                    ->wait();
                EXPECT_TRUE(at::equal(received, all))
                    << many << " rows, " << (asked ? "where others can write" : "elsewhere");
            }
        });
    }
}

TEST(SharedMemoryBackend, RefusesRowsThatAreNotExpected)
{
    for (const auto& [sent, after] : {std::pair<std::int64_t, int>(10, 0),
                                      {100'000, 0},
                                      {10, 200}}) {  // 10,000 are expected; the last come while nobody waits
        std::atomic<int> refusals{0};                // by either, or both
        std::atomic<bool> receiver_knows{false};
        run_backends(
            2,
            [&](c10d::Backend& backend, int rank) {
                auto& exchange = dynamic_cast<RowExchange&>(backend);
                const std::vector<std::int64_t> none{0, 0}, to_other{0, sent * 64}, expected{10'000 * 64, 0};
                const auto &send = rank == 0 ? to_other : none, &receive = rank == 0 ? none : expected;
                const auto received = exchange.empty_received({receive[0]}, at::kByte);
                try {
                    if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(after));
                    const auto work = exchange.exchange_rows(
                        RowStream({at::zeros({100'000, 16})}, at::arange(rank == 0 ? sent : 0, at::kLong)), send,
                        received, receive);
                    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2 * after));
                    work->wait();
                } catch (const std::exception& error) {
                    const std::string reason = error.what();
                    if (rank == 1) receiver_knows = true;
                    if (reason.find("rank 0 sends " + std::to_string(sent * 64) + " bytes, expected 640000") !=
                        std::string::npos)
                        ++refusals;
                    else
                        EXPECT_NE(reason.find("has left"), std::string::npos) << reason;
                    backend.abort();
                }
            },
            std::chrono::seconds(20));
        EXPECT_GE(refusals, 1);
        EXPECT_TRUE(receiver_knows) << sent << " rows, after " << after << " ms";
    }
}

TEST(SharedMemoryBackend, ExchangesUnevenRowsLargerThanItsRings)
{
    for (const int size : {2, 3, 4}) {
        run_backends(size, [&](c10d::Backend& backend, int rank) {
            std::mt19937 random(5);
            for (int round = 0; round < 20; ++round) {
                const std::int64_t scale = round % 5 == 0 ? 300'000 : 40;
                std::vector<std::vector<std::int64_t>> rows(size, std::vector<std::int64_t>(size));
                for (auto& line : rows) {
                    for (auto& n : line) n = random() % 3 == 0 ? 0 : static_cast<std::int64_t>(random() % scale);
                }
                std::vector<at::Tensor> sent, expected;
                std::vector<std::int64_t> receive;
                const auto piece = [&](int from, int to) {
                    return at::arange(rows[from][to] * 3, at::kInt).add(1000 * from + 10 * to).view({-1, 3});
                };
                for (int r = 0; r < size; ++r) {
                    sent.push_back(piece(rank, r));
                    expected.push_back(piece(r, rank));
                    receive.push_back(rows[r][rank]);
                }
                auto in = at::cat(sent),
                     out = at::empty({std::accumulate(receive.begin(), receive.end(), std::int64_t{0}), 3}, at::kInt);
                backend.alltoall_base(out, in, receive, rows[rank])->wait();
                EXPECT_TRUE(at::equal(out, at::cat(expected)));
            }
        });
    }
}

TEST(SharedMemoryBackend, KeepsStartedCollectivesApartWhateverIsWaitedForFirst)
{
    run_backends(3, [](c10d::Backend& backend, int rank) {
        for (int round = 0; round < 10; ++round) {
            std::vector<at::Tensor> a{numbers(200'000, rank, at::kFloat)}, b{at::full({5}, rank, at::kLong)},
                c{numbers(400'000, rank, at::kDouble)};
            c10d::BroadcastOptions from_two;
            from_two.rootRank = 2;
            const auto first = backend.allreduce(a, c10d::AllreduceOptions());
            const auto second = backend.broadcast(b, from_two);
            const auto third = backend.allreduce(c, c10d::AllreduceOptions());
            if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(round % 3));
            third->wait();
            second->wait();
            first->wait();

            EXPECT_TRUE(at::equal(a[0], numbers(200'000, 0, at::kFloat) + numbers(200'000, 1, at::kFloat) +
                                            numbers(200'000, 2, at::kFloat)));
            EXPECT_TRUE(at::equal(b[0], at::full({5}, 2, at::kLong)));
            EXPECT_TRUE(at::equal(c[0], numbers(400'000, 0, at::kDouble) + numbers(400'000, 1, at::kDouble) +
                                            numbers(400'000, 2, at::kDouble)));
        }
        backend.barrier({})->wait();
    });
}

/// Both ranks start a sum and an exchange, each larger than the rings, and call nothing until the numbers are there.
TEST(SharedMemoryBackend, CarriesOnWhileTheProgramComputes)
{
    constexpr std::int64_t n = 3'000'000;
    run_backends(2, [&](c10d::Backend& backend, int rank) {
        std::vector<at::Tensor> sums{at::full({n}, 1.0F + static_cast<float>(rank))};
        auto sent = at::full({2 * n}, 5.0F + static_cast<float>(rank)), received = at::zeros({2 * n});
        std::vector<std::int64_t> counts{n, n};
        const auto reduction = backend.allreduce(sums, {});
        const auto exchange = backend.alltoall_base(received, sent, counts, counts, {});
        const auto last_number = [](const at::Tensor& tensor) {
            return *static_cast<const volatile float*>(tensor.const_data_ptr<float>() + tensor.numel() - 1);
        };
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while ((last_number(sums[0]) != 3 || last_number(received) != 6) && std::chrono::steady_clock::now() < deadline)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        EXPECT_EQ(last_number(sums[0]), 3);
        EXPECT_EQ(last_number(received), 6);
        reduction->wait();
        exchange->wait();
        EXPECT_TRUE(at::equal(sums[0], at::full({n}, 3.0F)));
        EXPECT_TRUE(at::equal(received, at::cat({at::full({n}, 5.0F), at::full({n}, 6.0F)})));
    });
}

/// Rank 0 starts what the others wait for, and calls nothing until they have it.
TEST(SharedMemoryBackend, LetsNobodyWaitForItsNextCall)
{
    std::atomic<int> num_done{0};
    run_backends(3, [&](c10d::Backend& backend, int rank) {
        std::vector<at::Tensor> sums{at::ones({30'000})}, rows{at::full({1'000'000}, rank)};
        const std::int64_t n = 1'000'000;
        std::vector<std::int64_t> send{0, rank == 2 ? n : 0, rank == 1 ? n : 0}, receive = send;
        auto sent = at::full({rank == 0 ? 0 : n}, rank), received = at::zeros_like(sent);
        const std::vector works{backend.allreduce(sums, {}), backend.broadcast(rows, {}),
                                backend.alltoall_base(received, sent, receive, send, {})};
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (rank == 0 && num_done < 2 && std::chrono::steady_clock::now() < deadline)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        if (rank == 0) {
            EXPECT_EQ(num_done.load(), 2);
        }
        for (const auto& work : works) work->wait();
        ++num_done;
        EXPECT_TRUE(at::equal(sums[0], at::full({30'000}, 3.0F)));
        EXPECT_TRUE(at::equal(rows[0], at::zeros({1'000'000}, at::kLong)));
        EXPECT_TRUE(at::equal(received, rank == 0 ? sent : at::full({n}, 3 - rank)));
    });
}

TEST(SharedMemoryBackend, LeavesErrorsToThoseWhoWaitForThem)
{
    const auto store = c10::make_intrusive<c10d::HashStore>();
    run_backends(2, [&](c10d::Backend& backend, int rank) {
        auto other = connect_shared_memory(store, rank, 2, std::chrono::seconds(60), [](int) { return false; });
        std::vector<at::Tensor> uneven{at::ones({4 + rank})}, sums{at::ones({5})};
        EXPECT_ANY_THROW(backend.allreduce(uneven, {})->wait());

        other->allreduce(sums, {})->wait();

        EXPECT_TRUE(at::equal(sums[0], at::full({5}, 2.0F)));
        other->barrier({})->wait();
        const auto work = rank == 0 ? other->barrier({}) : nullptr;
        other.reset();
        EXPECT_TRUE(!work || throws_with<std::runtime_error>("the group was destroyed", [&] { work->wait(); }));
    });
}

TEST(SharedMemoryBackend, TellsWhenRanksCallDifferentCollectives)
{
    run_backends(2, [](c10d::Backend& backend, int rank) {
        if (rank == 0) {
            std::vector<at::Tensor> tensors{at::ones({4})};
            EXPECT_TRUE(throws_with<std::runtime_error>("all_reduce of 16 bytes, on rank 1 barrier", [&] {
                backend.allreduce(tensors, c10d::AllreduceOptions())->wait();
            }));
            backend.abort();
        } else {
            EXPECT_ANY_THROW(backend.barrier({})->wait());
        }
    });
}

TEST(SharedMemoryBackend, TellsWhenRanksPassTensorsOfDifferentTypes)
{
    run_backends(2, [](c10d::Backend& backend, int rank) {
        std::vector<at::Tensor> tensors{at::ones({4}, rank == 0 ? at::kFloat : at::kInt)};
        EXPECT_TRUE(
            throws_with<std::runtime_error>(rank == 0 ? "here Float, on rank 1 Int" : "here Int, on rank 0 Float",
                                            [&] { backend.allreduce(tensors)->wait(); }));
    });
}

TEST(SharedMemoryBackend, FailsWhenARankIsLateGoneOrHasLeft)
{
    const auto wait_alone = [](c10d::Backend& backend, int rank, const char* word) {
        if (rank == 1) {
            std::this_thread::sleep_for(std::chrono::milliseconds(600));
            return;
        }
        EXPECT_TRUE(throws_with<std::runtime_error>(word, [&] { backend.barrier({})->wait(); }));
    };
    run_backends(
        2, [&](c10d::Backend& backend, int rank) { wait_alone(backend, rank, "no answer within"); },
        std::chrono::milliseconds(200));
    run_backends(
        2, [&](c10d::Backend& backend, int rank) { wait_alone(backend, rank, "rank 1 has ended"); },
        std::chrono::seconds(60), [](int rank) { return rank == 1; });
    run_backends(2, [&](c10d::Backend& backend, int rank) {
        if (rank == 1) backend.abort();
        wait_alone(backend, rank, "rank 1 has left");
    });
}

/// A rank that is done may be gone before the others have read its last words.
TEST(SharedMemoryBackend, WhoHasSaidAllMayLeave)
{
    std::mutex mutex;
    std::condition_variable changed;
    bool asked = false, gone = false;
    const auto has_ended = [&](int rank) {
        if (rank != 1) return false;
        std::unique_lock lock(mutex);  // rank 0 asks, having heard nothing yet: now rank 1 speaks and goes
        asked = true;
        changed.notify_all();
        changed.wait(lock, [&] { return gone; });
        return true;
    };
    run_backends(
        2,
        [&](c10d::Backend& backend, int rank) {
            if (rank == 0) {
                EXPECT_NO_THROW(backend.barrier({})->wait());
                return;
            }
            std::unique_lock lock(mutex);
            changed.wait(lock, [&] { return asked; });
            const auto words = backend.barrier({});
            backend.abort();
            gone = true;
            changed.notify_all();
        },
        std::chrono::seconds(60), has_ended);
}

}  // namespace
}  // namespace meshard
