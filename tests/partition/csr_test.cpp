// SPDX-License-Identifier: Apache-2.0
#include "partition/csr.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"

namespace meshard {
namespace {

Csr csr_of(std::vector<std::int64_t> offsets, std::vector<std::int32_t> indices)
{
    return {std::move(offsets), std::move(indices)};
}

TEST(Csr, HasNoRowsAtFirst)
{
    const Csr csr;

    EXPECT_EQ(csr.num_rows(), 0);
    EXPECT_EQ(csr.num_entries(), 0);
    EXPECT_NO_THROW(csr.validate(0));
}

TEST(Csr, GivesBackTheRowsThatWerePushed)
{
    Csr csr;
    csr.push_row(std::vector<std::int32_t>{4, 1});
    csr.push_row({});
    csr.push_row(std::vector<std::int32_t>{7});

    EXPECT_EQ(csr, csr_of({0, 2, 2, 3}, {4, 1, 7}));
    EXPECT_EQ(csr.row(0)[1], 1);
    EXPECT_TRUE(csr.row(1).empty());
    EXPECT_EQ(to_string(csr), "Csr: 3 rows, 3 entries");
    EXPECT_NO_THROW(csr.validate(8));
}

TEST(Csr, RefusesBrokenOffsets)
{
    EXPECT_TRUE(throws_with<InvalidInput>("offsets are empty", [] { csr_of({}, {}).validate(0); }));
    EXPECT_TRUE(throws_with<InvalidInput>("start at 1", [] { csr_of({1, 2}, {0, 0}).validate(1); }));
    EXPECT_TRUE(throws_with<InvalidInput>("fall from 2 to 1 at row 1", [] { csr_of({0, 2, 1}, {0, 0}).validate(1); }));
    EXPECT_TRUE(throws_with<InvalidInput>("end at 1, but there are 2", [] { csr_of({0, 1}, {0, 0}).validate(1); }));
}

TEST(Csr, NamesTheRowOfAnIndexOutside)
{
    EXPECT_TRUE(throws_with<InvalidInput>("row 2 holds index 3", [] { csr_of({0, 1, 1, 2}, {0, 3}).validate(3); }));
    EXPECT_TRUE(throws_with<InvalidInput>("row 0 holds index -1", [] { csr_of({0, 1}, {-1}).validate(3); }));
}

}  // namespace
}  // namespace meshard
