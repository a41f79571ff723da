// SPDX-License-Identifier: Apache-2.0
#include "partition/error.h"
#include "partition/ghosts/index_map.h"
#include "tests/support/expect_error.h"

namespace meshard {
namespace {

// Part 2 of 4 owns 4 5 8 and sees 9 of part 0, 1 and 7 of part 1, 2 of part 3.
IndexMap sample_map()
{
    return {.num_global = 10, .num_owned = 3, .global_ids = {4, 5, 8, 9, 1, 7, 2}, .ghost_owners = {0, 1, 1, 3}};
}

TEST(IndexMap, FindsOwnedAndGhostRows)
{
    const auto map = sample_map();

    EXPECT_NO_THROW(map.validate(2));
    EXPECT_EQ(map.num_ghosts(), 4);
    for (std::int32_t row = 0; row < map.num_local(); ++row) EXPECT_EQ(map.local_row(map.global_ids[row]), row);
    for (const auto absent : {0, 3, 6, 10, -1}) EXPECT_EQ(map.local_row(absent), -1);
}

TEST(IndexMap, PrintsTheOwnersOfItsGhosts)
{
    EXPECT_EQ(to_string(sample_map()), "IndexMap: 3 owned + 4 ghosts from parts 0, 1, 3");
    EXPECT_EQ(to_string(IndexMap{}), "IndexMap: 0 owned + 0 ghosts");
    EXPECT_EQ(to_string(IndexMap{5, 1, {0, 3}, {4}}), "IndexMap: 1 owned + 1 ghosts from part 4");
}

TEST(IndexMap, MayBeEmpty)
{
    EXPECT_NO_THROW(IndexMap{}.validate(0));
    EXPECT_EQ(IndexMap{}.local_row(0), -1);
}

TEST(IndexMap, NamesTheInvariantThatDoesNotHold)
{
    const auto refuses = [](auto change, const char* text) {
        auto map = sample_map();
        change(map);
        return throws_with<InvalidInput>(text, [&] { map.validate(2); });
    };

    EXPECT_TRUE(refuses([](IndexMap& m) { m.num_owned = 8; }, "num_owned is 8"));
    EXPECT_TRUE(refuses([](IndexMap& m) { m.num_owned = -1; }, "num_owned is -1"));
    EXPECT_TRUE(refuses([](IndexMap& m) { m.ghost_owners.pop_back(); }, "3 ghost owners for 4 ghosts"));
    EXPECT_TRUE(refuses([](IndexMap& m) { m.num_global = 9; }, "local row 3 has global id 9"));
    EXPECT_TRUE(refuses([](IndexMap& m) { m.global_ids[0] = -1; }, "local row 0 has global id -1"));
    EXPECT_TRUE(refuses([](IndexMap& m) { m.global_ids[1] = 4; }, "owned ids are not ascending at local row 1"));
    EXPECT_TRUE(refuses([](IndexMap& m) { m.ghost_owners[0] = 2; }, "ghost 9 has owner 2"));
    EXPECT_TRUE(refuses([](IndexMap& m) { m.ghost_owners[0] = -1; }, "ghost 9 has owner -1"));
    EXPECT_TRUE(
        refuses([](IndexMap& m) { std::swap(m.global_ids[4], m.global_ids[5]); }, "not sorted by (owner, global id)"));
    EXPECT_TRUE(refuses([](IndexMap& m) { m.ghost_owners[3] = 0; }, "not sorted by (owner, global id)"));
    EXPECT_TRUE(refuses([](IndexMap& m) { m.global_ids[6] = 8; }, "ghost 8 is owned here too"));
    EXPECT_TRUE(refuses([](IndexMap& m) { m.global_ids[6] = 9; }, "ghost 9 is listed with two owners"));
}

}  // namespace
}  // namespace meshard
