// SPDX-License-Identifier: Apache-2.0
// What a new user runs first, with the programs as they are built and little training.
#include "tests/apps/program_test.h"

namespace meshard {
namespace {

class Quickstart : public ProgramTest {
protected:
    static ProgramResult quickstart(const std::vector<std::string>& options)
    {
        const auto build = std::filesystem::path(program_path()).parent_path().parent_path();
        std::vector<std::string> arguments{"MESHARD_BUILD=" + build.string(), "bash",
                                           source_path("apps/quickstart.sh")};
        arguments.insert(arguments.end(), options.begin(), options.end());
        return run_program("/usr/bin/env", arguments);
    }
};

TEST_F(Quickstart, LeavesWhatItSays)
{
    const auto result = quickstart({"--no-setup", "--epochs", "1", "-o", path("results")});

    ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
    for (const char* name : {"shards/mesh.pvtp", "predicted_026.vtp", "predicted_026.png", "solver_026.png",
                             "shards.png", "runs/ahmed/metrics.jsonl", "runs/ahmed/checkpoints/best.safetensors"}) {
        EXPECT_TRUE(std::filesystem::exists(path("results/" + std::string(name)))) << name;
    }
    // What the solver's fields add up to does not depend on training; what is predicted is no wild number even after an
    // epoch.
    const auto solver = nlohmann::json::parse(content_of(path("results/forces_solver.json")));
    const auto predicted = nlohmann::json::parse(content_of(path("results/forces_predicted.json")));
    const auto cases = nlohmann::json::parse(content_of(source_path("apps/sample/cases.json")))["cases"];
    const auto body = std::ranges::find_if(cases, [](const auto& entry) { return entry["id"] == "026"; });
    ASSERT_NE(body, cases.end());
    EXPECT_NEAR(solver["Cd"].get<double>(), (*body)["Cd"].get<double>(), 1e-5);
    EXPECT_GT(predicted["Cd"].get<double>(), 0);
    EXPECT_LT(predicted["Cd"].get<double>(), 1);
    EXPECT_NE(predicted["Cd"], solver["Cd"]);
    EXPECT_NE(result.out.find("drag coefficient Cd"), std::string::npos);
    EXPECT_NE(result.out.find("=== Done"), std::string::npos);
}

TEST_F(Quickstart, RefusesWhatItCannotDo)
{
    write_text("precious", "");
    EXPECT_EQ(quickstart({"--no-setup", "-o", path("")}).exit_code, 2);
    EXPECT_TRUE(std::filesystem::exists(path("precious")));
    EXPECT_EQ(quickstart({"--epochs"}).exit_code, 2);
    EXPECT_EQ(quickstart({"--epochs", "0"}).exit_code, 2);
    EXPECT_EQ(quickstart({"--fast"}).exit_code, 2);
}

}  // namespace
}  // namespace meshard
