// SPDX-License-Identifier: Apache-2.0
#include "sharding/ranks/rank_group.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <chrono>
#include <functional>
#include <thread>
#include <vector>

namespace meshard {
namespace {

/// Rank r brings `counts[r]` numbers; every rank passes on what it has until its own are back.
at::Tensor passed_round(const RankGroup& group, const std::vector<std::int64_t>& counts, int delay_ms)
{
    const auto size = group.size(), me = group.rank();
    auto current = at::arange(counts[me], at::kDouble) + 1000 * me;
    for (int step = 0; step < size; ++step) {
        const auto coming = (me - step - 1 + 2 * size) % size;
        auto next = at::full({counts[coming]}, -1.0, at::kDouble);
        auto pending = group.start_ring_shift(current, next);
        std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
        pending.wait();
        if (counts[coming] > 0) {
            EXPECT_EQ(next[0].item<double>(), 1000.0 * coming);
        }
        current = next;
    }
    return current;
}

const std::vector<std::int64_t> kCounts{5, 0, 1, 30000};

TEST(RingShift, BringsUnevenBlocksBackToTheirStart)
{
    run_ranks(4, [](const auto& mesh) {
        const auto me = mesh->coordinate(0);
        mesh->counter().reset();

        const auto back = passed_round(mesh->group(0), kCounts, 0);

        EXPECT_TRUE(at::equal(back, at::arange(kCounts[me], at::kDouble) + 1000 * me));
        EXPECT_EQ(mesh->counter().num_calls(), 4);
        EXPECT_EQ(mesh->counter().total_bytes(), 30006 * 8);
    });
}

TEST(RingShift, DoesSoOverGlooWithARankThatIsLate)
{
    const auto store = c10::make_intrusive<c10d::HashStore>();
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 4; ++rank) {
        ranks.emplace_back([&, rank] {
            const auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(60));
            options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
            const RankGroup group(c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, 4, options), "domain",
                                  std::make_shared<CommCounter>());

            EXPECT_TRUE(at::equal(passed_round(group, kCounts, rank == 2 ? 30 : 0),
                                  at::arange(kCounts[rank], at::kDouble) + 1000 * rank));
            group.barrier();
        });
    }
    for (auto& rank : ranks) rank.join();
}

TEST(RingShift, OfOneRankReturnsWhatItIsGiven)
{
    const RankGroup alone;
    const auto sent = at::arange(3, at::kDouble);
    auto received = at::zeros({3}, at::kDouble);

    alone.start_ring_shift(sent, received).wait();

    EXPECT_TRUE(at::equal(received, sent));
}

}  // namespace
}  // namespace meshard
