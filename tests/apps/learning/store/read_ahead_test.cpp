// SPDX-License-Identifier: Apache-2.0
// Cases that are read in a thread of their own: in order, never more than a few, errors where they belong.
#include "apps/learning/store/read_ahead.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace meshard {
namespace {

using namespace std::chrono_literals;

CaseRows numbered(std::int64_t number)
{
    return {{}, {}, {}, {number}};
}

TEST(ReadAhead, GivesAllInTheirOrder)
{
    std::int64_t next = 0;
    ReadAhead ahead(
        [&]() -> std::optional<CaseRows> { return next < 100 ? std::optional(numbered(next++)) : std::nullopt; }, 3);
    for (std::int64_t i = 0; i < 100; ++i) EXPECT_EQ(ahead.take().ids.front(), i);
    EXPECT_THROW(ahead.take(), Error);
}

TEST(ReadAhead, ReadsNoFartherThanItMay)
{
    std::atomic<std::int64_t> next = 0;
    ReadAhead ahead([&]() -> std::optional<CaseRows> { return numbered(next++); }, 2);
    for (std::int64_t taken = 0; taken < 5; ++taken) {
        const auto end = std::chrono::steady_clock::now() + 5s;
        while (next < taken + 2 && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(1ms);
        std::this_thread::sleep_for(20ms);
        EXPECT_EQ(next, taken + 2);
        EXPECT_EQ(ahead.take().ids.front(), taken);
    }
}

TEST(ReadAhead, TellsAnErrorWhenItsTurnComes)
{
    std::int64_t next = 0;
    ReadAhead ahead(
        [&]() -> std::optional<CaseRows> {
            if (next == 2) throw IoError("file 2 is damaged");
            return numbered(next++);
        },
        5);
    EXPECT_EQ(ahead.take().ids.front(), 0);
    EXPECT_EQ(ahead.take().ids.front(), 1);
    EXPECT_TRUE(throws_with<IoError>("file 2 is damaged", [&] { ahead.take(); }));
    EXPECT_TRUE(throws_with<IoError>("file 2 is damaged", [&] { ahead.take(); })) << "and again";
}

TEST(ReadAhead, CountsWhatItWaits)
{
    ReadAhead ahead(
        []() -> std::optional<CaseRows> {
            std::this_thread::sleep_for(50ms);
            return numbered(0);
        },
        1);
    ahead.take();
    EXPECT_GE(ahead.seconds_waited(), 0.02);
    const auto before = ahead.seconds_waited();
    std::this_thread::sleep_for(400ms);  // time enough for a reading on a busy machine
    ahead.take();
    EXPECT_LT(ahead.seconds_waited() - before, 0.04);
}

TEST(ReadAhead, EndsBeforeAllIsTaken)
{
    for (int i = 0; i < 20; ++i) ReadAhead([]() -> std::optional<CaseRows> { return numbered(0); }, 2);
}

}  // namespace
}  // namespace meshard
