// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "partition/error.h"
#include "sharding/launch.h"

extern char** environ;

namespace meshard {
namespace {

constexpr const char* kFailureFolder = "MESHARD_FAILURE_FOLDER";
constexpr int kExitOfDeadRank = 5;

volatile std::sig_atomic_t signal_received = 0;
void remember_signal(int signal) { signal_received = signal; }

/// A folder of our own in the temporary directory, gone when the run is.
struct MeetingPlace {
    std::filesystem::path folder;

    MeetingPlace()
    {
        auto pattern = (std::filesystem::temp_directory_path() / "meshard-ranks-XXXXXX").string();
        if (!mkdtemp(pattern.data())) {
            throw IoError("--nproc: cannot make a folder in " + std::filesystem::temp_directory_path().string() + ": " + std::strerror(errno) +
                          ". Set TMPDIR to a folder that can be written.");
        }
        folder = pattern;
    }
    ~MeetingPlace()
    {
        std::error_code ignored;
        std::filesystem::remove_all(folder, ignored);
    }
    MeetingPlace(const MeetingPlace&) = delete;
    MeetingPlace& operator=(const MeetingPlace&) = delete;
};

pid_t start_rank(int rank, int size, const std::vector<std::string>& arguments, const std::filesystem::path& folder)
{
    std::vector<std::string> variables;
    const auto replaced = {"RANK=", "WORLD_SIZE=", "LOCAL_RANK=", "LOCAL_WORLD_SIZE=", "MESHARD_LAUNCH=", "MESHARD_RENDEZVOUS="};
    for (char** entry = environ; *entry; ++entry) {
        const std::string text = *entry;
        bool keep = true;
        for (const char* name : replaced) keep &= !text.starts_with(name);
        if (keep) variables.push_back(text);
    }
    variables.push_back("RANK=" + std::to_string(rank));
    variables.push_back("WORLD_SIZE=" + std::to_string(size));
    variables.push_back("LOCAL_RANK=" + std::to_string(rank));
    variables.push_back("LOCAL_WORLD_SIZE=" + std::to_string(size));
    variables.push_back("MESHARD_LAUNCH=env");
    variables.push_back("MESHARD_RENDEZVOUS=file://" + (folder / "store").string());
    variables.push_back(std::string(kFailureFolder) + "=" + folder.string());

    std::vector<char*> argv{const_cast<char*>("meshard")}, envp;
    for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    for (const auto& variable : variables) envp.push_back(const_cast<char*>(variable.c_str()));
    argv.push_back(nullptr);
    envp.push_back(nullptr);

    const auto parent = getpid();
    const pid_t pid = fork();
    if (pid < 0) throw CommunicationError("--nproc: cannot start rank " + std::to_string(rank) + ": " + std::strerror(errno) + ".");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);   // ranks do not outlive the launcher
        if (getppid() != parent) _exit(kExitOfDeadRank);
        execve("/proc/self/exe", argv.data(), envp.data());
        _exit(127);
    }
    return pid;
}

struct Failure {
    int rank = -1;
    int exit_code = 0;
    std::string message;
};

/// The failure to show: a rank that was killed, else the first that reports one of its own, else the first at all.
Failure explain(const std::vector<int>& order, const std::vector<int>& status, const std::filesystem::path& folder)
{
    Failure best;
    int best_class = 4;
    for (const int rank : order) {
        if (status[rank] == 0) continue;
        Failure failure{rank, WIFEXITED(status[rank]) ? WEXITSTATUS(status[rank]) : kExitOfDeadRank, {}};
        int kind = 2;
        std::ifstream file(folder / ("failure." + std::to_string(rank)));
        std::string first_line;
        if (std::getline(file, first_line)) {
            failure.message.assign(std::istreambuf_iterator<char>(file), {});
            kind = first_line == "consequence" ? 3 : 1;
        }
        if (WIFSIGNALED(status[rank])) {
            const int signal = WTERMSIG(status[rank]);
            failure.message = "meshard: rank " + std::to_string(rank) + " was killed by signal " + std::to_string(signal) + " (" + strsignal(signal) +
                              (signal == SIGKILL ? "; out of memory?" : "") + "). All ranks have stopped.";
            kind = 0;
        } else if (failure.message.empty()) {
            failure.message = "meshard: rank " + std::to_string(rank) + " ended with exit code " + std::to_string(failure.exit_code) + ".";
        }
        if (kind < best_class) {
            best_class = kind;
            best = failure;
        }
    }
    return best;
}

}  // namespace

int run_local_ranks(int size, const std::vector<std::string>& arguments, double grace_seconds)
{
    const MeetingPlace place;
    struct sigaction action = {}, old_int, old_term;
    action.sa_handler = remember_signal;
    sigaction(SIGINT, &action, &old_int);
    sigaction(SIGTERM, &action, &old_term);
    signal_received = 0;

    std::vector<pid_t> pids(size, -1);
    for (int rank = 0; rank < size; ++rank) pids[rank] = start_rank(rank, size, arguments, place.folder);

    std::vector<int> status(size, 0), order;   // order in which ranks ended by themselves
    int running = size;
    double since_failure = -1;
    bool ended_by_us = false;
    const auto signal_all = [&](int signal) {
        for (const auto pid : pids) {
            if (pid > 0) kill(pid, signal);
        }
    };
    int passed_on = 0;
    while (running > 0) {
        for (int rank = 0; rank < size; ++rank) {
            int state = 0;
            if (pids[rank] <= 0 || waitpid(pids[rank], &state, WNOHANG) != pids[rank]) continue;
            pids[rank] = -1;
            --running;
            // What we ended ourselves is no failure of its own.
            if (!ended_by_us) {
                status[rank] = state;
                order.push_back(rank);
            }
            if (state != 0 && since_failure < 0) since_failure = 0;
        }
        if (signal_received && passed_on != signal_received) {
            passed_on = signal_received;
            signal_all(passed_on);
        }
        usleep(20'000);
        if (since_failure >= 0) {
            since_failure += 0.02;
            if (since_failure > grace_seconds) {
                signal_all(ended_by_us && since_failure > grace_seconds + 2 ? SIGKILL : SIGTERM);
                ended_by_us = true;
            }
        }
    }
    sigaction(SIGINT, &old_int, nullptr);
    sigaction(SIGTERM, &old_term, nullptr);
    if (passed_on) return 128 + passed_on;

    const auto failure = explain(order, status, place.folder);
    if (failure.rank < 0) return 0;
    std::fprintf(stderr, "%s\n", failure.message.c_str());
    return failure.exit_code;
}

bool report_failure_to_launcher(const std::string& message, bool is_consequence)
{
    const char* folder = std::getenv(kFailureFolder);
    const char* rank = std::getenv("RANK");
    if (!folder || !rank) return false;
    const auto path = std::filesystem::path(folder) / (std::string("failure.") + rank);
    std::ofstream file(path);
    file << (is_consequence ? "consequence" : "cause") << '\n' << message;
    return static_cast<bool>(file.flush());
}

}  // namespace meshard
