// SPDX-License-Identifier: Apache-2.0
// A rank that dies in training: the others stop, and the user learns which one it was.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <unistd.h>

#include "tests/apps/program_test.h"

namespace meshard {
namespace {

using LostRank = ProgramTest;

/// Process ids whose environment has both texts.
std::vector<pid_t> processes_with(const std::string& first, const std::string& second)
{
    std::vector<pid_t> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
        const auto name = entry.path().filename().string();
        if (name.find_first_not_of("0123456789") != std::string::npos) continue;
        std::ifstream file(entry.path() / "environ", std::ios::binary);
        const std::string text{std::istreambuf_iterator<char>(file), {}};
        const auto has = [&](const std::string& variable) { return ('\0' + text).find('\0' + variable + '\0') != std::string::npos; };
        if (has(first) && has(second)) found.push_back(static_cast<pid_t>(std::stol(name)));
    }
    return found;
}

TEST_F(LostRank, StopsTheOthersAndIsNamed)
{
    const std::string sample = std::string(MESHARD_SOURCE_DIR) + "/apps/sample";
    const std::string metrics = path("runs/ahmed/metrics.jsonl");
    const std::string mark = "MESHARD_TEST_MARK=" + path("");
    setenv("MESHARD_TEST_MARK", path("").c_str(), 1);
    bool killed = false;
    auto time_of_death = std::chrono::steady_clock::now();
    ProgramOptions options;
    options.interrupt_when = [&] {   // asked again and again while the program runs
        if (killed || content_of(metrics).find("train_step") == std::string::npos) return false;
        const auto victims = processes_with(mark, "RANK=1");
        if (victims.size() != 1) return false;
        kill(victims.front(), SIGKILL);
        killed = true;
        time_of_death = std::chrono::steady_clock::now();
        return false;
    };

    const auto result = meshard({"train", sample + "/ahmed.yaml", "--nproc", "2", "data.root=" + sample, "output_dir=" + path("runs"),
                                 "training.num_epochs=1000"},
                                options);
    const std::chrono::duration<double> survived = std::chrono::steady_clock::now() - time_of_death;

    ASSERT_TRUE(killed) << result.err;
    EXPECT_EQ(result.exit_code, 5);
    EXPECT_NE(result.err.find("rank 1 was killed by signal 9"), std::string::npos) << result.err;
    EXPECT_LT(survived.count(), 30);
    EXPECT_TRUE(processes_with(mark, "RANK=0").empty()) << "a rank lives on";
    unsetenv("MESHARD_TEST_MARK");
}

}  // namespace
}  // namespace meshard
