// SPDX-License-Identifier: Apache-2.0
#include "apps/console/console.h"
#include "apps/learning/cases/input_ranges.h"
#include "apps/learning/prediction/prediction_spread.h"
#include "apps/learning/sweep/sweep_plan.h"
#include "tests/support/expect_error.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <map>
#include <set>

namespace meshard {
namespace {

CaseLists eleven_cases()
{
    CaseLists cases;
    for (int i = 0; i < 11; ++i)
        (i < 7 ? cases.train : i < 9 ? cases.val : cases.test).push_back({std::to_string(i), {}, {}});
    return cases;
}

TEST(SweepPlan, ReadsValuesThatAreLists)
{
    const auto grid = grid_key("data.inputs = [[points], [points, normals], 'a,b']");

    EXPECT_EQ(grid.key, "data.inputs");
    EXPECT_EQ(grid.values, (std::vector<std::string>{"[points]", "[points, normals]", "'a,b'"}));
    EXPECT_EQ(grid_key("model.n_layers=4").values, std::vector<std::string>{"4"});
    for (const char* word : {"model.n_layers", "=[1]", "a=[1, 1]", "a=[1,]", "seed=[1, 2]", "data.split.train=[0.5]"}) {
        EXPECT_TRUE(throws_with<UsageError>(word, [&] { grid_key(word); }));
    }
}

TEST(SweepPlan, DealsEachCaseOfTrainAndValToOneFold)
{
    const auto runs = sweep_runs(eleven_cases(), {grid_key("a.lr=[1, 2]"), grid_key("b.lr=[3]")}, 4, 3, 5);

    ASSERT_EQ(runs.size(), 2 * 4 * 3);
    std::map<std::pair<std::string, std::int64_t>, std::multiset<std::string>> judged;
    std::set<std::string> names;
    for (const auto& run : runs) {
        EXPECT_EQ(run.train.size() + run.val.size(), 9);
        EXPECT_TRUE(run.val.size() == 2 || run.val.size() == 3);
        for (const auto& id : run.val) {
            EXPECT_EQ(std::ranges::count(run.train, id), 0);
            judged[{run.point, run.seed}].insert(id);
        }
        names.insert(run.name);
    }
    EXPECT_EQ(names.size(), runs.size());
    EXPECT_EQ(runs[1].name, "a.lr=2-b.lr=3_fold1_seed5");
    EXPECT_EQ(runs[1].words, (std::vector<std::string>{"a.lr=2", "b.lr=3"}));
    for (const auto& [place, ids] : judged)
        EXPECT_EQ(ids, (std::multiset<std::string>{"0", "1", "2", "3", "4", "5", "6", "7", "8"}));
    EXPECT_TRUE(throws_with<UsageError>("expected 2 to 9", [] { sweep_runs(eleven_cases(), {}, 10, 1, 0); }));
}

TEST(SweepPlan, KeepsTheSplitWithoutFolds)
{
    const auto runs = sweep_runs(eleven_cases(), {}, 0, 2, 0);

    ASSERT_EQ(runs.size(), 2);
    EXPECT_EQ(runs[1].name, "seed1");
    EXPECT_EQ(runs[1].val, (std::vector<std::string>{"7", "8"}));
    EXPECT_EQ(runs[1].train.size(), 7);
}

TEST(SweepPlan, ReadsTimes)
{
    EXPECT_EQ(seconds_of("90s"), 90);
    EXPECT_EQ(seconds_of("1.5h"), 5400);
    for (const char* text : {"60", "m", "-1m", "1d", "nans"})
        EXPECT_TRUE(throws_with<UsageError>("such as 90s", [&] { seconds_of(text); })) << text;
}

TEST(PredictionSpread, IsThatOfLibTorchInTwoPasses)
{
    torch::manual_seed(1);
    const auto all = torch::randn({5, 7, 3}) + 1000;
    PredictionSpread found;
    found.add(all[0]);
    EXPECT_TRUE(found.mean().equal(all[0]));
    EXPECT_FALSE(found.spread().defined());
    for (int i = 1; i < 5; ++i) found.add(all[i]);

    const auto in_double = all.to(torch::kDouble);
    EXPECT_TRUE(torch::allclose(found.mean(), in_double.mean(0).to(torch::kFloat), 1e-7));
    EXPECT_TRUE(torch::allclose(found.spread(), in_double.std(0).to(torch::kFloat), 1e-6));
}

TEST(InputRanges, SayWhatLiesBeyond)
{
    DataConfig data;
    data.constants = {"speed"};
    InputRanges ranges;
    for (const float speed : {30.0F, 40.0F}) {
        auto rows = torch::zeros({1, 4, 6});
        rows[0][1][2] = speed / 10;
        ranges.add({rows, {}, torch::tensor({{speed}}), {}});
    }
    ranges = InputRanges::from_json(nlohmann::json::parse(ranges.to_json().dump()));
    auto inside = torch::zeros({1, 4, 6}), outside = torch::zeros({1, 4, 6});
    inside[0][0][2] = 4.05;
    outside[0][0][2] = 5.0;

    EXPECT_EQ(ranges.beyond({inside, {}, torch::tensor({{30.0F}}), {}}, data, RankGroup()), std::vector<std::string>());
    const auto found = ranges.beyond({outside, {}, torch::tensor({{20.0F}}), {}}, data, RankGroup());

    ASSERT_EQ(found.size(), 2);
    EXPECT_EQ(found[0], "points.z goes from 0 to 5; in training from 0 to 4 (25 % of the points are beyond)");
    EXPECT_EQ(found[1], "speed is 20; in training it was 30 to 40");
}

TEST(InputRanges, SayWhatIsOfAnotherSize)
{
    const auto box = [](double length) { return std::array<double, 6>{1, 1 + length, 0, length / 4, 0, length / 2}; };
    InputRanges ranges;
    ranges.add({torch::zeros({1, 1, 3}), {}, {}, {}});
    EXPECT_EQ(ranges.other_size(box(1000)), "");
    for (const double length : {1.0, 4.0}) ranges.add_size(box(length));
    ranges = InputRanges::from_json(nlohmann::json::parse(ranges.to_json().dump()));
    for (const double length : {0.34, 1.0, 11.9}) EXPECT_EQ(ranges.other_size(box(length)), "") << length;
    for (const double length : {0.001, 0.33, 12.1})
        EXPECT_TRUE(ranges.other_size(box(length))
                        .starts_with(fmt::format("it is {:g} long, and the training cases were "
                                                 "1 to 4; if it is in other units",
                                                 length)))
            << ranges.other_size(box(length));
}

}  // namespace
}  // namespace meshard
