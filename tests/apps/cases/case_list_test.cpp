// SPDX-License-Identifier: Apache-2.0
#include "apps/cases/case_list.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace meshard {
namespace {

std::vector<std::string> ids(const std::vector<CaseSource>& cases)
{
    std::vector<std::string> ids;
    for (const auto& source : cases) ids.push_back(source.id);
    return ids;
}

using Ids = std::vector<std::string>;

class CaseListTest : public testing::Test {
protected:
    CaseListTest()
    {
        for (const char* id : {"01", "02", "03", "04", "05"}) write_bytes(folder_ / (std::string("boundary_") + id + ".vtp"), "");
        data_.root = folder_.path();
        data_.files = "boundary_*.vtp";
        data_.split.shares["train"] = 1.0;
    }

    testing::AssertionResult refuses(std::string_view text) const
    {
        return throws_with<InvalidInput>(text, [&] { find_cases(data_, 0); });
    }

    TemporaryFolder folder_;
    DataConfig data_;
};

TEST_F(CaseListTest, TakesTheWildcardAsTheId)
{
    EXPECT_EQ(ids(find_cases(data_, 0).train), (Ids{"01", "02", "03", "04", "05"}));
}

TEST_F(CaseListTest, TakesTheLastOfSeveralWildcards)
{
    std::filesystem::create_directories(folder_.path() / "run_7");
    write_bytes(folder_ / ("run_7/surface_a+b.vtp"), "");
    data_.files = "run_*/surface_*.vtp";

    EXPECT_EQ(ids(find_cases(data_, 0).train), (Ids{"a+b"}));
}

TEST_F(CaseListTest, FindsTheSurfaceOfEachCase)
{
    for (const char* id : {"01", "02", "03", "04"}) write_bytes(folder_ / (std::string("body_") + id + ".stl"), "");
    data_.wall = "body_*.stl";

    EXPECT_TRUE(refuses("case 05 has no surface"));
    data_.split = {.column = "", .shares = {}, .lists = {{"train", {"02", "04"}}}};
    EXPECT_EQ(find_cases(data_, 0).train.at(1).wall, folder_.path() / "body_04.stl");
    data_.wall = "body_01.stl";
    for (const auto& source : find_cases(data_, 0).train) EXPECT_EQ(source.wall, folder_.path() / "body_01.stl");
    data_.wall = "bodies_*.stl";
    EXPECT_TRUE(refuses("no file matches data.wall"));
}

TEST_F(CaseListTest, SplitsByAColumnOfTheTable)
{
    write_bytes(folder_ / "cases.json", R"({"cases": [{"id": "01", "split": "train", "length": 1.5}, {"id": "02", "split": "val"},
        {"id": "03", "split": "test"}, {"id": "04", "split": "train"}, {"id": "05", "split": "test"}]})");
    data_.case_tables = {"cases.json"};
    data_.split = {.column = "split"};

    const auto cases = find_cases(data_, 0);

    EXPECT_EQ(ids(cases.train), (Ids{"01", "04"}));
    EXPECT_EQ(ids(cases.val), (Ids{"02"}));
    EXPECT_EQ(ids(cases.test), (Ids{"03", "05"}));
    EXPECT_EQ(cases.train[0].number("length"), 1.5);
    EXPECT_TRUE(throws_with<InvalidInput>("case 01: column 'split' of the case table is 'train'; expected a number", [&] { cases.train[0].number("split"); }));
    EXPECT_TRUE(throws_with<InvalidInput>("Did you mean 'length'?", [&] { cases.train[0].number("lenght"); }));
}

TEST_F(CaseListTest, ReadsTablesWithCommas)
{
    write_bytes(folder_ / "cases.csv", "id,split,length\r\n01,train,2\r\n02,train,3\n03,val,1\n04,val,1\n05,val,1\n");
    data_.case_tables = {"cases.csv"};
    data_.split = {.column = "split"};

    const auto cases = find_cases(data_, 0);

    EXPECT_EQ(ids(cases.train), (Ids{"01", "02"}));
    EXPECT_EQ(cases.train[1].number("length"), 3.0);
}

TEST_F(CaseListTest, JoinsTablesAndTablesOfOneCaseEach)
{
    for (const char* id : {"01", "02", "03", "04", "05"}) {
        write_bytes(folder_ / (std::string("force_") + id + ".csv"), std::string("Cd, Cl ,length\n 0.") + id + " , -1,9\n");
    }
    write_bytes(folder_ / "cases.csv", "id,length\n01,2\n02,3\n");
    data_.case_tables = {"cases.csv", "force_*.csv"};

    const auto cases = find_cases(data_, 0).train;

    EXPECT_EQ(cases[0].number("Cd"), 0.01);
    EXPECT_EQ(cases[0].number("Cl"), -1);
    EXPECT_EQ(cases[0].number("length"), 2) << "the first table counts";
    EXPECT_EQ(cases[2].number("Cd"), 0.03);
    EXPECT_EQ(cases[2].number("length"), 9);

    write_bytes(folder_ / "force_02.csv", "Cd,Cl\n1,2\n3,4\n");
    EXPECT_TRUE(throws_with<IoError>("force_02.csv has 2 rows; expected one", [&] { find_cases(data_, 0); }));
    data_.case_tables = {"forces_*.csv"};
    EXPECT_TRUE(throws_with<InvalidInput>("no case table matches", [&] { find_cases(data_, 0); }));
}

TEST_F(CaseListTest, SplitsByLists)
{
    data_.split = {.lists = {{"train", {"04", "01"}}, {"val", {"05"}}}};

    const auto cases = find_cases(data_, 0);

    EXPECT_EQ(ids(cases.train), (Ids{"04", "01"}));
    EXPECT_EQ(ids(cases.val), (Ids{"05"}));
    EXPECT_TRUE(cases.test.empty());
}

TEST_F(CaseListTest, SplitsBySharesWithTheSeed)
{
    data_.split = {.shares = {{"train", 0.6}, {"val", 0.2}, {"test", 0.2}}};

    const auto cases = find_cases(data_, 3);
    auto all = ids(cases.all());
    std::sort(all.begin(), all.end());

    EXPECT_EQ(cases.train.size(), 3U);
    EXPECT_EQ(cases.val.size(), 1U);
    EXPECT_EQ(all, (Ids{"01", "02", "03", "04", "05"}));
    EXPECT_EQ(ids(find_cases(data_, 3).train), ids(cases.train));
}

TEST_F(CaseListTest, RefusesWhatCannotBeSplit)
{
    data_.split = {.lists = {{"train", {"1"}}}};
    EXPECT_TRUE(refuses("names case '1', which has no file"));
    data_.split = {.lists = {{"train", {"01"}}, {"val", {"01"}}}};
    EXPECT_TRUE(refuses("names case '01' twice"));
    data_.split = {.lists = {{"val", {"01"}}}};
    EXPECT_TRUE(refuses("none of the 5 cases is left to train on"));
    data_.files = "surface_*.vtp";
    EXPECT_TRUE(refuses("no file matches"));
}

TEST_F(CaseListTest, RefusesBrokenTables)
{
    data_.case_tables = {"cases.json"};
    const auto refuses_table = [&](const std::string& content, std::string_view text) {
        write_bytes(folder_ / "cases.json", content);
        return throws_with<IoError>(text, [&] { find_cases(data_, 0); });
    };
    EXPECT_TRUE(refuses_table("{", "is no JSON"));
    EXPECT_TRUE(refuses_table("{}", "must be a list of objects"));
    EXPECT_TRUE(refuses_table("[{\"name\": 1}]", "a row without `id`"));
    EXPECT_TRUE(refuses_table("[{\"id\": \"a\"}, {\"id\": \"a\"}]", "has case 'a' twice"));
    data_.case_tables = {"absent.csv"};
    EXPECT_TRUE(throws_with<IoError>("cannot be read", [&] { find_cases(data_, 0); }));
    data_.root = folder_.path() / "absent";
    EXPECT_TRUE(throws_with<IoError>("which is no folder", [&] { find_cases(data_, 0); }));
}

TEST(ShuffledOrder, IsAPermutationThatFollowsTheSeed)
{
    auto order = shuffled_order(50, 1);

    EXPECT_EQ(order, shuffled_order(50, 1));
    EXPECT_NE(order, shuffled_order(50, 2));
    std::sort(order.begin(), order.end());
    for (std::int64_t i = 0; i < 50; ++i) EXPECT_EQ(order[i], i);
    EXPECT_TRUE(shuffled_order(0, 1).empty());
}

}  // namespace
}  // namespace meshard
