// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/steps/case_order.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace meshard {
namespace {

std::vector<CaseSource> three_cases()
{
    return {{"a", {}, {}}, {"b", {}, {}}, {"c", {}, {}}};
}

using Order = std::vector<std::int64_t>;

TEST(CaseOrder, IsAnotherPermutationInEveryEpoch)
{
    std::vector<CaseSource> cases(30);
    TrainingConfig config;
    const CaseOrder order(config, 5, cases);

    EXPECT_NE(order.of_epoch(1), order.of_epoch(2));
    EXPECT_EQ(order.of_epoch(1), CaseOrder(config, 5, cases).of_epoch(1));
    EXPECT_NE(order.of_epoch(1), CaseOrder(config, 6, cases).of_epoch(1));
    config.shuffle = false;
    EXPECT_EQ(CaseOrder(config, 5, three_cases()).of_epoch(2), (Order{0, 1, 2}));
}

TEST(CaseOrder, TakesTheSharesOfDataSets)
{
    std::vector<CaseSource> cases(12);
    for (int i = 0; i < 12; ++i) cases[i].set = i < 3 ? "small" : "large";
    std::vector<DataSetConfig> sets(2);
    sets[0].name = "small";
    sets[1].name = "large";
    sets[0].share = sets[1].share = 5;
    TrainingConfig config;
    const CaseOrder order(config, 5, cases, sets);
    EXPECT_EQ(order.cases_of_sets(), (Order{6, 6}));

    std::map<std::int64_t, std::vector<std::int64_t>> times;  // by case
    for (int epoch = 1; epoch <= 3; ++epoch) {
        const auto taken = order.of_epoch(epoch), at_time = order.times_of_epoch(epoch);
        ASSERT_EQ(taken.size(), 12);
        EXPECT_EQ(std::ranges::count_if(taken, [](auto i) { return i < 3; }), 6);
        EXPECT_FALSE(std::ranges::is_sorted(taken, {}, [](auto i) { return i < 3; })) << "the sets are not mixed";
        for (std::size_t i = 0; i < taken.size(); ++i) times[taken[i]].push_back(at_time[i]);
    }
    for (auto& [index, of_case] : times) {
        std::ranges::sort(of_case);
        EXPECT_EQ(of_case, index < 3 ? (Order{1, 2, 3, 4, 5, 6}) : (Order{1, 2})) << index;
    }
    EXPECT_EQ(times.size(), 12);
    EXPECT_EQ(order.of_epoch(2), CaseOrder(config, 5, cases, sets).of_epoch(2));

    sets[0].share = 1e-6;
    EXPECT_EQ(CaseOrder(config, 5, cases, sets).cases_of_sets(), (Order{1, 11}));
    sets[0].share = 1;
    EXPECT_EQ(CaseOrder(config, 5, cases, sets).cases_of_sets(), (Order{2, 10}));
    sets.push_back({});
    sets[2].name = "only for tests";
    sets[2].share = 3;
    EXPECT_EQ(CaseOrder(config, 5, cases, sets).cases_of_sets(), (Order{2, 10, 0}));
    EXPECT_EQ(CaseOrder(config, 5, cases, sets).of_epoch(1).size(), 12U);
    sets.pop_back();
    sets.insert(sets.begin(), DataSetConfig());
    sets[0].name = "only for tests";
    sets[0].share = 90;
    sets[1].share = 1e-20;
    EXPECT_EQ(CaseOrder(config, 5, cases, sets).cases_of_sets(), (Order{0, 1, 11}));
    sets.erase(sets.begin());
    sets[0].share = sets[1].share = 0;
    EXPECT_EQ(CaseOrder(config, 5, cases, sets).of_epoch(2), CaseOrder(config, 5, cases).of_epoch(2));
    EXPECT_EQ(CaseOrder(config, 5, cases, sets).times_of_epoch(2), Order(12, 2));
}

TEST(CaseOrder, FollowsAFile)
{
    const TemporaryFolder folder;
    write_bytes(folder / "order.jsonl", "{\"comment\": 1}\n{\"epoch\": 1, \"order\": [\"c\", \"a\", "
                                        "\"b\"]}\n{\"epoch\": 2, \"order\": [\"a\", \"b\", \"c\"]}\n");
    TrainingConfig config;
    config.order_file = folder / "order.jsonl";

    const CaseOrder order(config, 0, three_cases());

    EXPECT_EQ(order.of_epoch(1), (Order{2, 0, 1}));
    EXPECT_EQ(order.of_epoch(2), (Order{0, 1, 2}));
    EXPECT_TRUE(throws_with<InvalidInput>("ends after epoch 2", [&] { order.of_epoch(3); }));
}

TEST(CaseOrder, RefusesAFileThatDoesNotFit)
{
    const TemporaryFolder folder;
    TrainingConfig config;
    config.order_file = folder / "order.jsonl";
    const auto refuses = [&](std::string_view content, std::string_view text) {
        write_bytes(folder / "order.jsonl", content);
        return throws_with<Error>(text, [&] { CaseOrder(config, 0, three_cases()); });
    };

    EXPECT_TRUE(refuses("{\"epoch\": 1, \"order\": [\"a\", \"b\"]}\n", "orders 2 cases, and 3 train"));
    EXPECT_TRUE(refuses("{\"epoch\": 1, \"order\": [\"a\", \"b\", \"b\"]}\n",
                        "case \"b\" is no training case, or stands there twice"));
    EXPECT_TRUE(refuses("{\"epoch\": 2, \"order\": [\"a\", \"b\", \"c\"]}\n", "epoch 2 is out of turn"));
    EXPECT_TRUE(refuses("nonsense\n", "line 1 is no JSON"));
    config.order_file = folder / "absent";
    EXPECT_TRUE(throws_with<IoError>("cannot be read", [&] { CaseOrder(config, 0, three_cases()); }));
}

}  // namespace
}  // namespace meshard
