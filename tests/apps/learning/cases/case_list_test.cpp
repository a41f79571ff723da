// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/cases/case_list.h"
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
        for (const char* id : {"01", "02", "03", "04", "05"})
            write_bytes(folder_ / (std::string("boundary_") + id + ".vtp"), "");
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

    data_.files = "boundary_*.*";
    EXPECT_TRUE(refuses("with the id 'vtp', one of them"));
    EXPECT_TRUE(refuses("The id is what the last * stands for."));
}

TEST_F(CaseListTest, KnowsTheIdsOfFilesAgain)
{
    for (const char* folder : {"a/run_3", "b/run_3", "b/run_4"}) {
        std::filesystem::create_directories(folder_.path() / folder);
        for (const char* name : {"body.vtp", "body_3.vtp"})
            write_bytes(folder_ / (folder + std::string("/") + name), "");
    }
    for (const char* files : {"a/run_*/body.vtp", "*/run_3/body.vtp", "a/run_*/body_*.vtp", "boundary_*.vtp"}) {
        data_.files = files;
        for (const auto& source : find_cases(data_, 0).train)
            EXPECT_EQ(training_ids(data_, source.file), Ids{source.id}) << source.file;
    }
    data_.files = "run_*/body.vtp";
    EXPECT_EQ(training_ids(data_, "elsewhere/run_8/body.vtp"), Ids{"8"});
    EXPECT_EQ(training_ids(data_, "elsewhere/body.stl"), Ids{"body"});
    for (const char* name : {"a", "b"})
        data_.sets.push_back({.name = name,
                              .root = folder_.path() / name,
                              .files = data_.files,
                              .case_tables = {},
                              .split = data_.split});
    for (const auto& source : find_cases(data_, 0).train)
        EXPECT_EQ(training_ids(data_, source.file), Ids{source.id}) << source.file;
    EXPECT_EQ(training_ids(data_, "elsewhere/run_8/body.vtp"), (Ids{"a:8", "b:8"}));
}

TEST_F(CaseListTest, TakesOnlyItsOwnPartForAPattern)
{
    for (const char* name : {"runs [a]", "b?", "c*", "d\\e"}) {
        SCOPED_TRACE(name);
        data_.root = folder_ / name;
        std::filesystem::create_directories(data_.root / "run_7");
        for (const char* file : {"run_7/body_a+b.vtp", "run_7/wall_a+b.stl", "one [1].stl"})
            write_bytes(data_.root / file, "");
        data_.files = "run_*/body_*.vtp";
        data_.wall = "run_*/wall_*.stl";

        EXPECT_EQ(ids(find_cases(data_, 0).train), (Ids{"a+b"}));
        EXPECT_EQ(find_cases(data_, 0).train[0].wall, data_.root / "run_7/wall_a+b.stl");
        data_.wall = "one [1].stl";
        EXPECT_EQ(find_cases(data_, 0).train[0].wall, data_.root / "one [1].stl");
    }
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
    write_bytes(folder_ / "cases.json",
                R"({"cases": [{"id": "01", "split": "train", "length": 1.5}, {"id": "02", "split": "val"},
        {"id": "03", "split": "test"}, {"id": "04", "split": "train"}, {"id": "05", "split": "test"}]})");
    data_.case_tables = {"cases.json"};
    data_.split = {.column = "split"};

    const auto cases = find_cases(data_, 0);

    EXPECT_EQ(ids(cases.train), (Ids{"01", "04"}));
    EXPECT_EQ(ids(cases.val), (Ids{"02"}));
    EXPECT_EQ(ids(cases.test), (Ids{"03", "05"}));
    EXPECT_EQ(cases.train[0].number("length"), 1.5);
    EXPECT_TRUE(throws_with<InvalidInput>("case 01: column 'split' of the case table is 'train'; expected a number",
                                          [&] { cases.train[0].number("split"); }));
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

TEST_F(CaseListTest, ReadsTablesOfSpreadsheets)
{
    const std::string mark = "\xEF\xBB\xBF";
    write_bytes(folder_ / "cases.csv", mark + "\"id\", \"V, in m/s\" ,note\r\n\"01\",2,\"long, with "
                                              "\"\"quotes\"\"\"\r\n02 , \"3\" ,\r\n03,4,a 2\" pipe\r\n \r\n");
    data_.case_tables = {"cases.csv"};

    const auto cases = find_cases(data_, 0).train;

    EXPECT_EQ(cases[0].number("V, in m/s"), 2);
    EXPECT_EQ(cases[0].columns.at("note"), "long, with \"quotes\"");
    EXPECT_EQ(cases[1].number("V, in m/s"), 3);
    EXPECT_EQ(cases[1].columns.at("note"), "");
    EXPECT_EQ(cases[2].columns.at("note"), "a 2\" pipe");

    const auto refuses = [&](const std::string& text, const std::string& line) {
        write_bytes(folder_ / "cases.csv", "id,note\n" + line + "\n");
        EXPECT_TRUE(throws_with<IoError>(text, [&] { find_cases(data_, 0); }));
    };
    refuses("cases.csv, line 2: the quotes of value 2 do not end before the next comma", "01,\"open");
    refuses("cases.csv, line 2: the quotes of value 2 do not end before the next comma", "01,\"a\" b");
    refuses("line 2: 3 values under 2 names. Values with commas in them stand between quotes", "01,a, b");
    for (const char* table : {"id;V\n01;0,5\n", "id\tV\n01\t0.5\n"}) {
        write_bytes(folder_ / "cases.csv", table);
        EXPECT_TRUE(throws_with<IoError>("cases.csv, line 1: no commas between names, but semicolons or tabs",
                                         [&] { find_cases(data_, 0); }));
    }
}

TEST_F(CaseListTest, JoinsTablesAndTablesOfOneCaseEach)
{
    for (const char* id : {"01", "02", "03", "04", "05"}) {
        write_bytes(folder_ / (std::string("force_") + id + ".csv"),
                    std::string("Cd, Cl ,length\n 0.") + id + " , -1,9\n");
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

    write_bytes(folder_ / "cases.csv", "id,length\n1,2\n2,3\n");  // a spreadsheet took the ids for numbers
    data_.case_tables = {"cases.csv"};
    EXPECT_TRUE(refuses("none of the 5 cases has a row in data.cases (cases.csv): their ids, by what the last * of the "
                        "files' pattern stands for, are such as '01', and those of the rows such as '1'"));
    write_bytes(folder_ / "cases.csv", "id,length\n");
    EXPECT_EQ(find_cases(data_, 0).train.size(), 5U);
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

TEST_F(CaseListTest, SplitsByListsOfAManifest)
{
    write_bytes(
        folder_ / "manifest.json",
        R"({"full_train": ["01", "boundary_03.vtp"], "full_val": ["02"], "full_test": ["04"], "scarce_train": ["03"],
        "version": 2})");
    data_.split = {.manifest = "manifest.json", .name = "full"};
    auto cases = find_cases(data_, 0);
    EXPECT_EQ(ids(cases.train), (Ids{"01", "03"}));
    EXPECT_EQ(ids(cases.val), (Ids{"02"}));
    EXPECT_EQ(ids(cases.test), (Ids{"04"}));

    data_.split = {.lists = {{"train", {"scarce_train", "full_val"}}, {"test", {"full_test"}}},
                   .manifest = "manifest.json"};
    cases = find_cases(data_, 0);
    EXPECT_EQ(ids(cases.train), (Ids{"03", "02"}));
    EXPECT_EQ(ids(cases.test), (Ids{"04"}));
}

TEST_F(CaseListTest, SplitsByAFamilyOfAManifestAndByFolders)
{
    for (const char* id : {"1", "10"}) {
        std::filesystem::create_directories(folder_.path() / ("run_" + std::string(id)));
        write_bytes(folder_ / ("run_" + std::string(id) + "/surface_" + id + ".vtp"), "");
    }
    data_.files = "run_*/surface_*.vtp";
    write_bytes(folder_ / "splits.json",
                R"({"wake": {"train": ["run_1/"], "validation": [10]}, "drag": {"train": [10], "test": ["run_1"]}})");
    data_.split = {.manifest = "splits.json", .name = "wake"};
    EXPECT_EQ(ids(find_cases(data_, 0).train), (Ids{"1"}));
    EXPECT_EQ(ids(find_cases(data_, 0).val), (Ids{"10"}));
    data_.split.name = "drag";
    EXPECT_EQ(ids(find_cases(data_, 0).train), (Ids{"10"}));

    write_bytes(folder_ / "one.json", R"({"train": ["run_10/surface_10.vtp"], "test": ["1"]})");
    data_.split = {.manifest = "one.json"};
    EXPECT_EQ(ids(find_cases(data_, 0).train), (Ids{"10"}));
}

TEST_F(CaseListTest, SplitsByATextFileAPart)
{
    write_bytes(folder_ / "train_ids.txt", "01\r\n\n  02  # the reference\n# 03\n");
    write_bytes(folder_ / "test_ids.txt", "05");
    data_.split = {.manifest = "*_ids.txt"};

    const auto cases = find_cases(data_, 0);

    EXPECT_EQ(ids(cases.train), (Ids{"01", "02"}));
    EXPECT_TRUE(cases.val.empty());
    EXPECT_EQ(ids(cases.test), (Ids{"05"}));
}

TEST_F(CaseListTest, RefusesWrongManifests)
{
    const auto refuses_manifest = [&](const std::string& content, const SplitConfig& split, std::string_view text) {
        write_bytes(folder_ / "manifest.json", content);
        data_.split = split;
        return throws_with<Error>(text, [&] { find_cases(data_, 0); });
    };
    const SplitConfig full{.manifest = "manifest.json", .name = "full"}, any{.manifest = "manifest.json"};
    EXPECT_TRUE(refuses_manifest(R"({"full_train": ["01", "06", "07", "8"]})", full,
                                 "names 4 cases, and of 3 there is no file: '06', '07', .... Did you mean"));
    EXPECT_TRUE(refuses_manifest(R"({"full_train": ["01"], "full_test": ["boundary_01.vtp"]})", full,
                                 "has case '01' in test and in train"));
    EXPECT_TRUE(refuses_manifest(R"({"full_train": ["01", "01"]})", full, "has case '01' twice in train"));
    EXPECT_TRUE(refuses_manifest(R"({"fill_train": ["01"]})", full, "data.split.name is 'full', which"));
    EXPECT_TRUE(refuses_manifest(R"({"full_train": ["01"]})",
                                 {.lists = {{"train", {"full_trian"}}}, .manifest = "manifest.json"},
                                 "data.split.train is 'full_trian', which"));
    EXPECT_TRUE(refuses_manifest(R"({"full_train": ["01"]})",
                                 {.lists = {{"train", {"full_trian"}}}, .manifest = "manifest.json"},
                                 "Did you mean 'full_train'?"));
    EXPECT_TRUE(
        refuses_manifest(R"({"full_train": ["01"]})", any, "has no lists train, val and test. It has full_train."));
    EXPECT_TRUE(refuses_manifest(R"({"train": [1.5]})", any, "holds 1.5; expected a list"));
    EXPECT_TRUE(refuses_manifest(R"({"train": "01"})", any, "is no list"));
    EXPECT_TRUE(refuses_manifest("01\n", any, "is no JSON object of lists"));
    EXPECT_TRUE(refuses_manifest("", {.manifest = "absent.json"},
                                 "absent.json cannot be read. data.split.manifest is relative to data.root"));
    EXPECT_TRUE(refuses_manifest("", {.manifest = "absent_*.txt"}, "there is no file"));
    EXPECT_TRUE(refuses_manifest(R"({"test": ["01"]})", any, "none of the 5 cases is left to train on"));
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
    EXPECT_TRUE(throws_with<IoError>("there is no folder", [&] { find_cases(data_, 0); }));
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
