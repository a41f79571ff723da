// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/sweep/run_results.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

namespace meshard {
namespace {

/// The folder of a run that has ended, with two judged cases.
std::filesystem::path put_run(const TemporaryFolder& folder, const std::string& name, const std::string& cases)
{
    const auto run = folder / name;
    std::filesystem::create_directories(run);
    std::ofstream(run / "metrics.jsonl")
        << R"({"phase":"train","loss":0.5,"seconds_in_steps":2})"
        << "\n"
        << R"({"phase":"val","metrics":{"p":{"rel_l2":0.2}},"forces":{"cd":{"mae":0.01}}})"
        << "\n"
        << R"({"phase":"memory"})"
        << "\n";
    std::ofstream(run / "val_cases.csv") << "id,split,cd.predicted,cd.true,cd.table\n" << cases;
    return run;
}

TEST(RunResults, ReadsTheCasesOfTheLastValidation)
{
    const TemporaryFolder folder;
    const auto result = result_of(
        put_run(folder, "run", "b,val,0.31,0.30,0.3005\n\"a, \"\"long\"\"\",val,0.28,0.29,\nc,val,nan,0.29,0.29\n"));

    ASSERT_TRUE(result);
    ASSERT_EQ(result->cases.size(), 3U);
    EXPECT_EQ(result->cases[0].id, "a, \"long\"");
    EXPECT_EQ(result->cases[0].coefficients.at("cd").truth, 0.29)
        << "without a number in the table, the integral of the true fields";
    EXPECT_EQ(result->cases[1].coefficients.at("cd").predicted, 0.31);
    EXPECT_EQ(result->cases[1].coefficients.at("cd").truth, 0.3005);
    EXPECT_TRUE(result->cases[2].coefficients.empty()) << "a prediction that is no number is none";
    EXPECT_FALSE(result->cases[0].coefficients.contains("cl"));
}

TEST(RunResults, PutsPlacesWithoutANumberLastAndQuotesTheirTexts)
{
    std::vector<SweptRun> runs;
    for (const auto& [point, error] : std::vector<std::pair<std::string, double>>{
             {"loss=\"a\",b", 0.5}, {"x=2", NAN}, {"x=3", 0.4}, {"x=4", INFINITY}, {"x=5", 0.6}})
        runs.push_back(
            {.run = {.name = "run", .point = point, .words = {}, .fold = 0, .seed = 1, .train = {}, .val = {}},
             .result =
                 RunResult{.error = error, .best_error = error, .drag_error = {}, .loss = 1, .seconds = 2, .cases = {}},
             .state = "done"});

    std::vector<std::string> order;
    const auto json = sweep_json(runs);
    for (const auto& place : json["points"]) order.push_back(place["point"]);
    EXPECT_EQ(order, (std::vector<std::string>{"x=3", "loss=\"a\",b", "x=5", "x=2", "x=4"}));
    EXPECT_NE(sweep_csv(runs).find("\nrun,\"loss=\"\"a\"\",b\",0,1,done,0.5,0.5,,1,2\nrun,x=2,0,1,done,,,,1,2\n"),
              std::string::npos);
}

TEST(RunResults, JudgesWhatHeadAndShapeSayAndMoments)
{
    const TemporaryFolder folder;
    const auto run = put_run(folder, "run", "");
    std::ofstream(run / "val_cases.csv")
        << "id,split,cd.predicted,cd.true,cd.table,cd.shape,cd.head,cmy.predicted,cmy.true\n"
        << "a,val,0.32,0.3,0.31,0.30,0.35,0.5,0.4\n"
        << "b,val,0.26,0.25,0.25,0.28,,0.2,0.4\n";
    const std::vector runs{
        SweptRun{.run = {.name = "run", .point = "", .words = {}, .fold = 1, .seed = 0, .train = {}, .val = {}},
                 .result = result_of(run)}};

    const auto point = sweep_json(runs)["points"][0];

    EXPECT_NEAR(point["cd"]["each_run"]["mae"].get<double>(), 0.01, 1e-12);
    EXPECT_NEAR(point["cd_head"]["each_run"]["mae"].get<double>(), 0.04, 1e-12);
    EXPECT_NEAR(point["cd_shape"]["each_run"]["mae"].get<double>(), 0.02, 1e-12);
    EXPECT_NEAR(point["cmy"]["each_run"]["mae"].get<double>(), 0.15, 1e-12);
    for (const char* label : {"Cd by the shape alone", "Cmy"})
        EXPECT_NE(sweep_text(runs).find(label), std::string::npos) << label;
}

TEST(RunResults, JudgesCoefficientsOverAllRunsOfAPlace)
{
    const TemporaryFolder folder;
    std::vector<SweptRun> runs;
    const auto add = [&](const std::string& name, std::int64_t fold, std::int64_t seed, const std::string& cases) {
        SweptRun one{
            .run = {.name = name, .point = "", .words = {}, .fold = fold, .seed = seed, .train = {}, .val = {}},
            .result = result_of(put_run(folder, name, cases))};
        runs.push_back(std::move(one));
    };
    add("f1s0", 1, 0, "a,val,0.32,0.30,\nb,val,0.26,0.25,\n");
    add("f2s0", 2, 0, "c,val,0.33,0.35,\n");
    add("f1s1", 1, 1, "a,val,0.30,0.30,\nb,val,0.25,0.25,\n");
    add("f2s1", 2, 1, "c,val,0.33,0.35,\n");

    const auto drag = sweep_json(runs)["points"][0]["cd"];

    EXPECT_EQ(drag["each_run"]["n"], 6);
    EXPECT_NEAR(drag["each_run"]["mae"].get<double>(), (0.02 + 0.01 + 0.02 + 0 + 0 + 0.02) / 6, 1e-12);
    EXPECT_NEAR(drag["each_run"]["bias"].get<double>(), (0.02 + 0.01 - 0.02 + 0 + 0 - 0.02) / 6, 1e-12);
    EXPECT_EQ(drag["mean_of_runs"]["n"], 3);
    EXPECT_NEAR(drag["mean_of_runs"]["mae"].get<double>(), (0.01 + 0.005 + 0.02) / 3, 1e-12);
    EXPECT_NEAR(drag["mean_of_runs"]["spearman"].get<double>(), 1, 1e-12);
    const auto text = sweep_text(runs);
    EXPECT_NE(text.find("Cd, mean of runs"), std::string::npos) << text;
    EXPECT_EQ(text.find("Cl"), std::string::npos) << text;
}

}  // namespace
}  // namespace meshard
