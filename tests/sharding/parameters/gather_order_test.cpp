// SPDX-License-Identifier: Apache-2.0
#include "sharding/parameters/gather_order.h"

#include <gtest/gtest.h>

#include <string>

namespace meshard {
namespace {

/// Uses units named by letters, each of one group; an upper-case letter is the second group of its unit. Returns what
/// was to come after each, `.` nothing.
std::string expected_after(GatherOrder& order, const std::string& uses)
{
    std::string next;
    for (const char letter : uses) {
        const bool second = letter < 'a';
        order.use({static_cast<std::size_t>(second ? letter - 'A' : letter - 'a'), second ? 1u : 0u});
        const auto coming = order.of_next_unit();
        next += coming.empty() ? '.' : static_cast<char>(coming.front().unit + (coming.front().group == 0 ? 'a' : 'A'));
        if (coming.size() > 1) next += '+';
    }
    return next;
}

/// An order that is known from one step.
GatherOrder learnt(const std::string& uses)
{
    GatherOrder order;
    expected_after(order, uses);
    order.end_step();
    return order;
}

TEST(GatherOrder, IsThatOfTheStepBefore)
{
    GatherOrder order;
    EXPECT_EQ(expected_after(order, "abcad"), ".....");
    order.end_step();
    EXPECT_EQ(expected_after(order, "abcad"), "bcad.");
    order.end_step();
    EXPECT_EQ(expected_after(order, "abcad"), "bcad.");
}

TEST(GatherOrder, HasAllGroupsOfAUnit)
{
    auto order = learnt("abBc");
    EXPECT_EQ(expected_after(order, "abBc"), "b+cc.");
}

TEST(GatherOrder, ExpectsNothingOnAnotherWay)
{
    auto order = learnt("abcd");
    EXPECT_EQ(expected_after(order, "abdc"), "bc..");
    order.end_step();
    EXPECT_EQ(expected_after(order, "abdc"), "bdc.");
    order.end_step();
    EXPECT_EQ(expected_after(order, "bdc"), "...");
}

TEST(GatherOrder, NeverGoesFromOnePassToTheNext)
{
    auto order = learnt("abcabcabc");  // evaluations, then a step
    EXPECT_EQ(expected_after(order, "abcabc"), "bc.bc.");
    order.end_step();
    EXPECT_EQ(expected_after(order, "abc"), "bc.");
}

TEST(GatherOrder, BeginsAnewAfterAPassThatStopped)
{
    auto order = learnt("abcd");
    EXPECT_EQ(expected_after(order, "ababcd"), "bcbcd.");
}

TEST(GatherOrder, StaysAfterAStepThatFailed)
{
    auto order = learnt("abcd");
    expected_after(order, "ac");
    order.abandon_step();
    EXPECT_EQ(expected_after(order, "abcd"), "bcd.");
}

}  // namespace
}  // namespace meshard
