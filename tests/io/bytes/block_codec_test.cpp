// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/block_codec.h"
#include "tests/support/expect_error.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

namespace meshard {
namespace {

TEST(ForEachInParallel, TakesEveryNumberOnce)
{
    for (const std::size_t count : {0U, 1U, 2U, 1000U}) {
        std::vector<std::atomic<int>> taken(count);

        for_each_in_parallel(count, [&](std::size_t i) { ++taken[i]; });

        for (const auto& times : taken) EXPECT_EQ(times, 1);
    }
}

TEST(ForEachInParallel, ThrowsWhatAThreadThrew)
{
    for (const std::size_t count : {1U, 2U, 64U, 1000U}) {
        EXPECT_TRUE(throws_with<std::runtime_error>("no memory", [&] {
            for_each_in_parallel(count, [&](std::size_t i) {
                if (i % 2 == 0) throw std::runtime_error("no memory");
            });
        }));
    }
}

}  // namespace
}  // namespace meshard
