// SPDX-License-Identifier: Apache-2.0
// A rank that dies in training: the others stop, and the user learns which one it was.
#include "io/checkpoints/safetensors.h"
#include "partition/error.h"
#include "tests/apps/learning/training/small_training.h"
#include "tests/support/test_paths.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <sstream>
#include <tuple>
#include <unistd.h>

namespace meshard {
namespace {

using LostRank = ProgramTest;

/// Process ids whose environment at their start has all of these variables, and that have this name, if one is given.
std::vector<pid_t> processes_with(const std::vector<std::string>& variables, const std::string& wanted_name = {})
{
    std::vector<pid_t> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
        const auto name = entry.path().filename().string();
        if (name.find_first_not_of("0123456789") != std::string::npos) continue;
        std::ifstream file(entry.path() / "environ", std::ios::binary);
        const std::string text{std::istreambuf_iterator<char>(file), {}};
        const auto has = [&](const std::string& variable) {
            return ('\0' + text).find('\0' + variable + '\0') != std::string::npos;
        };
        std::string called;
        std::getline(std::ifstream(entry.path() / "comm"), called);
        if (!wanted_name.empty() && called != wanted_name) continue;
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
    options.interrupt_when = [&] {  // asked again and again while the program runs
        if (killed || content_of(metrics).find("train_step") == std::string::npos) return false;
        const auto victims = processes_with({mark}, "meshard rank 1");
        if (victims.size() != 1) return false;
        kill(victims.front(), SIGKILL);
        killed = true;
        time_of_death = std::chrono::steady_clock::now();
        return false;
    };

    const auto result = meshard({"train", sample + "/ahmed.yaml", "--nproc", "2", "data.root=" + sample,
                                 "output_dir=" + path("runs"), "training.num_epochs=1000"},
                                options);
    const std::chrono::duration<double> survived = std::chrono::steady_clock::now() - time_of_death;

    ASSERT_TRUE(killed) << result.err;
    EXPECT_EQ(result.exit_code, 5);
    EXPECT_NE(result.err.find("rank 1 was killed by signal 9"), std::string::npos) << result.err;
    EXPECT_LT(survived.count(), 30);
    EXPECT_TRUE(processes_with({mark}).empty()) << "a rank lives on";
    unsetenv("MESHARD_TEST_MARK");
}

/// Runs of training in which a rank is killed: by turns among the steps and at any time from the start on. Parameters:
/// ranks, transport. MESHARD_KILL_TRIALS=20 kills so many times for each.
class KilledRank : public SmallTraining, public testing::WithParamInterface<std::tuple<int, const char*>> {
protected:
    KilledRank() { setenv("MESHARD_TEST_MARK", path("").c_str(), 1); }
    ~KilledRank() override
    {
        unsetenv("MESHARD_BACKEND");
        unsetenv("MESHARD_TEST_MARK");
    }

    std::string mark() const { return "MESHARD_TEST_MARK=" + path(""); }

    /// What a run has left and no reader would take. Files that begin with a dot are of an unfinished writer, and no
    /// output.
    std::vector<std::string> half_written(const std::string& folder) const
    {
        std::vector<std::string> found;
        if (!std::filesystem::exists(folder)) return found;
        for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
            const auto file = entry.path();
            if (!entry.is_regular_file() || file.filename().string().starts_with('.') ||
                file.string().find("/.") != std::string::npos)
                continue;
            bool is_whole = true;
            if (file.extension() == ".safetensors") {
                try {
                    read_safetensors(file);
                } catch (const Error&) {
                    is_whole = false;
                }
            } else if (file.extension() == ".json") {
                is_whole = nlohmann::json::accept(content_of(file.string()));
            } else if (file.extension() == ".jsonl") {
                const auto text = content_of(file.string());
                std::istringstream lines(text);
                for (std::string line; std::getline(lines, line);) is_whole &= nlohmann::json::accept(line);
                is_whole &= text.empty() || text.back() == '\n';
            } else if (file.extension() == ".vtp") {
                is_whole = meshard({"info", file.string()}).exit_code == 0;
            }
            if (!is_whole) found.push_back(file.string());
        }
        return found;
    }
};

TEST_P(KilledRank, NeverLeavesTheOthersHanging)
{
    const auto [num_ranks, transport] = GetParam();
    const bool by_mpirun = std::string(transport) == "mpi";
    if (by_mpirun && mpirun_path().empty()) GTEST_SKIP() << "this build has no mpirun";
    const char* wanted = std::getenv("MESHARD_KILL_TRIALS");
    const int num_trials = wanted ? std::atoi(wanted) : 2;
    const auto seed = std::random_device{}();
    std::mt19937 random(seed);
    setenv("MESHARD_BACKEND", transport, 1);
    for (int trial = 0; trial < num_trials; ++trial) {
        const auto victim = static_cast<int>(random() % static_cast<unsigned>(num_ranks));
        const bool among_steps = trial % 2 == 0;
        const auto delay = std::chrono::milliseconds(random() % (among_steps ? 500 : 3000));
        const auto runs = path("runs" + std::to_string(trial));
        SCOPED_TRACE("seed " + std::to_string(seed) + ", trial " + std::to_string(trial) + ": rank " +
                     std::to_string(victim) + " after " + std::to_string(delay.count()) + " ms " +
                     (among_steps ? "of steps" : "of life"));
        std::optional<std::chrono::steady_clock::time_point> born, died;
        ProgramOptions options;
        options.interrupt_when = [&] {
            const auto now = std::chrono::steady_clock::now();
            if (died) return now > *died + std::chrono::seconds(90);  // a hang is ended, and fails
            if (!born && among_steps && content_of(runs + "/car/metrics.jsonl").find("train_step") == std::string::npos)
                return false;
            const auto number = std::to_string(victim);
            const auto ranks = by_mpirun ? processes_with({mark(), "OMPI_COMM_WORLD_RANK=" + number})
                                         : processes_with({mark()}, "meshard rank " + number);
            if (ranks.size() != 1) return false;
            if (!born) born = now;
            if (now < *born + delay) return false;
            kill(ranks.front(), SIGKILL);
            died = now;
            return false;
        };
        std::vector<std::string> words{"train", path("car.yaml"), "output_dir=" + runs, "training.num_epochs=1000000"};
        if (!by_mpirun) words.insert(words.end(), {"--nproc", std::to_string(num_ranks)});

        const auto result = by_mpirun ? mpirun(num_ranks, words, options) : meshard(words, options);

        ASSERT_TRUE(died) << result.err;
        EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - *died).count(), 30);
        if (by_mpirun) {
            EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.err;
            EXPECT_NE(result.err.find("process rank " + std::to_string(victim)), std::string::npos) << result.err;
        } else {
            EXPECT_EQ(result.exit_code, 5) << result.err;
            EXPECT_NE(result.err.find("rank " + std::to_string(victim) + " was killed by signal 9"), std::string::npos)
                << result.err;
        }
        const auto still_there = [&] { return processes_with({mark()}); };
        for (int wait = 0; by_mpirun && wait < 100 && !still_there().empty(); ++wait)
            usleep(50'000);  // mpirun does not wait for those that it ends
        EXPECT_TRUE(still_there().empty()) << "a rank lives on";
        EXPECT_EQ(half_written(runs), std::vector<std::string>());
    }
}

INSTANTIATE_TEST_SUITE_P(, KilledRank, testing::Combine(testing::Values(2, 4), testing::Values("shm", "gloo", "mpi")),
                         [](const auto& info) {
                             return std::string(std::get<1>(info.param)) + std::to_string(std::get<0>(info.param));
                         });

}  // namespace
}  // namespace meshard
