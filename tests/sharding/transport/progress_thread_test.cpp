// SPDX-License-Identifier: Apache-2.0
#include "sharding/transport/progress_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

namespace meshard {
namespace {

bool comes_true(const std::function<bool()>& is_true)
{
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!is_true() && std::chrono::steady_clock::now() < deadline)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return is_true();
}

TEST(ProgressThread, CallsUntilNothingIsLeft)
{
    std::atomic<int> num_calls = 0;
    ProgressThread thread([&] { return ++num_calls < 5; });

    thread.wake();

    EXPECT_TRUE(comes_true([&] { return num_calls == 5; }));
}

TEST(ProgressThread, OutlivesAStepThatThrows)
{
    std::atomic<int> num_calls = 0;
    ProgressThread thread([&]() -> bool {
        ++num_calls;
        throw std::runtime_error("no memory");
    });

    thread.wake();
    ASSERT_TRUE(comes_true([&] { return num_calls == 1; }));
    thread.wake();

    EXPECT_TRUE(comes_true([&] { return num_calls == 2; }));
}

}  // namespace
}  // namespace meshard
