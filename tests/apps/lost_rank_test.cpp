// SPDX-License-Identifier: Apache-2.0
// A rank that dies in training: the others stop, and the user learns which one it was.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <tuple>

#include <unistd.h>

#include "tests/apps/program_test.h"
#include "tests/support/test_paths.h"

namespace meshard {
namespace {

using LostRank = ProgramTest;

/// Process ids whose environment has all of these variables.
std::vector<pid_t> processes_with(const std::vector<std::string>& variables)
{
    std::vector<pid_t> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
        const auto name = entry.path().filename().string();
        if (name.find_first_not_of("0123456789") != std::string::npos) continue;
        std::ifstream file(entry.path() / "environ", std::ios::binary);
        const std::string text{std::istreambuf_iterator<char>(file), {}};
        const auto has = [&](const std::string& variable) { return ('\0' + text).find('\0' + variable + '\0') != std::string::npos; };
        if (std::ranges::all_of(variables, has)) found.push_back(static_cast<pid_t>(std::stol(name)));
    }
    return found;
}

TEST_F(LostRank, StopsTheOthersAndIsNamed)
{
    const std::string sample = source_path("apps/sample");
    const std::string metrics = path("runs/ahmed/metrics.jsonl");
    const std::string mark = "MESHARD_TEST_MARK=" + path("");
    setenv("MESHARD_TEST_MARK", path("").c_str(), 1);
    bool killed = false;
    auto time_of_death = std::chrono::steady_clock::now();
    ProgramOptions options;
    options.interrupt_when = [&] {   // asked again and again while the program runs
        if (killed || content_of(metrics).find("train_step") == std::string::npos) return false;
        const auto victims = processes_with({mark, "RANK=1"});
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
    EXPECT_TRUE(processes_with({mark}).empty()) << "a rank lives on";
    unsetenv("MESHARD_TEST_MARK");
}

/// Parameters: ranks, transport.
class KilledRank : public ProgramTest, public testing::WithParamInterface<std::tuple<int, const char*>> {};

TEST_P(KilledRank, NeverLeavesTheOthersHanging)
{
    const auto [num_ranks, transport] = GetParam();
    const auto seed = std::random_device{}();
    std::mt19937 random(seed);
    const std::string mark = "MESHARD_TEST_MARK=" + path("");
    setenv("MESHARD_TEST_MARK", path("").c_str(), 1);
    setenv("MESHARD_BACKEND", transport, 1);
    for (int trial = 0; trial < 5; ++trial) {
        const auto victim = static_cast<int>(random() % static_cast<unsigned>(num_ranks));
        const auto delay = std::chrono::milliseconds(random() % 1500);   // from the connecting to the steps
        SCOPED_TRACE("seed " + std::to_string(seed) + ", trial " + std::to_string(trial) + ": rank " + std::to_string(victim) + " after " +
                     std::to_string(delay.count()) + " ms");
        std::optional<std::chrono::steady_clock::time_point> born, died;
        ProgramOptions options;
        options.interrupt_when = [&] {
            const auto now = std::chrono::steady_clock::now();
            if (died) return now > *died + std::chrono::seconds(90);   // a hang is ended, and fails
            const auto ranks = processes_with({mark, "RANK=" + std::to_string(victim)});
            if (ranks.size() != 1) return false;
            if (!born) born = now;
            if (now < *born + delay) return false;
            kill(ranks.front(), SIGKILL);
            died = now;
            return false;
        };
        const auto result = meshard({"bench", "step", "--points", "1000", "--repeats", "1000000", "--nproc", std::to_string(num_ranks)}, options);
        ASSERT_TRUE(died) << result.err;
        EXPECT_EQ(result.exit_code, 5) << result.err;
        EXPECT_NE(result.err.find("rank " + std::to_string(victim) + " was killed by signal 9"), std::string::npos) << result.err;
        EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - *died).count(), 30);
        EXPECT_TRUE(processes_with({mark}).empty()) << "a rank lives on";
    }
    unsetenv("MESHARD_BACKEND");
    unsetenv("MESHARD_TEST_MARK");
}

INSTANTIATE_TEST_SUITE_P(, KilledRank, testing::Combine(testing::Values(2, 4), testing::Values("shm", "gloo")),
                         [](const auto& info) { return std::string(std::get<1>(info.param)) + std::to_string(std::get<0>(info.param)); });

}  // namespace
}  // namespace meshard
