// SPDX-License-Identifier: Apache-2.0
#include "partition/run_on_threads.h"
#include "tests/support/expect_error.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

namespace meshard {
namespace {

TEST(RunOnThreads, GivesEachNumberToOne)
{
    std::vector<std::atomic<int>> taken(500);

    run_on_threads(4, [&](const std::function<std::int64_t()>& next) {
        for (auto i = next(); i < 500; i = next()) ++taken[i];
    });

    for (const auto& times : taken) EXPECT_EQ(times, 1);
}

TEST(RunOnThreads, ThrowsWhatAThreadThrewAndStopsTheOthers)
{
    for (const int num_threads : {1, 2, 5}) {
        std::atomic<std::int64_t> num_taken = 0;
        EXPECT_TRUE(throws_with<std::runtime_error>("number 3", [&] {
            run_on_threads(num_threads, [&](const std::function<std::int64_t()>& next) {
                for (auto i = next(); i < 1'000'000'000; i = next()) {
                    ++num_taken;
                    if (i == 3) throw std::runtime_error("number 3");
                }
            });
        }));
        EXPECT_LT(num_taken, 1'000'000'000);
    }
}

}  // namespace
}  // namespace meshard
