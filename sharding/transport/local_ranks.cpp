// SPDX-License-Identifier: Apache-2.0
#include "partition/error.h"
#include "sharding/transport/launch.h"

#include <fmt/core.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

namespace meshard {
namespace {

constexpr const char* kFailureFolder = "MESHARD_FAILURE_FOLDER";
constexpr int kExitOfDeadRank = 5;
constexpr int kExitOfInterruption = 130;
constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};  // signals that interrupt a run

volatile std::sig_atomic_t signal_received = 0;
volatile std::sig_atomic_t num_signals = 0;
void remember_signal(int signal)
{
    signal_received = signal;
    num_signals = num_signals + 1;
}

/// A guard: these signals are recorded instead of ending the process. Signals that were ignored (SIGHUP under nohup)
/// still are.
class RememberedSignals {
public:
    RememberedSignals()
    {
        num_signals = 0;
        struct sigaction action = {};
        action.sa_handler = remember_signal;
        for (std::size_t i = 0; i < std::size(kSignals); ++i) {
            sigaction(kSignals[i], nullptr, &before_[i]);
            if (kSignals[i] != SIGHUP || before_[i].sa_handler != SIG_IGN) sigaction(kSignals[i], &action, nullptr);
        }
    }
    ~RememberedSignals() { restore(); }
    RememberedSignals(const RememberedSignals&) = delete;
    RememberedSignals& operator=(const RememberedSignals&) = delete;

    /// Returns whether the program had a handler of its own. Ranks, which run the same program, will have it too.
    bool had_handler() const { return before_[0].sa_handler != SIG_DFL && before_[0].sa_handler != SIG_IGN; }

    /// Called in a rank just after fork: restores the default handlers, so that a signal ends it until the program that
    /// it executes installs its own.
    static void let_them_end()
    {
        for (const int signal : kSignals) {
            struct sigaction action = {};
            sigaction(signal, nullptr, &action);
            if (action.sa_handler == remember_signal) std::signal(signal, SIG_DFL);
        }
    }

    /// Called in a rank that goes on in this program just after fork: restores the program's handlers.
    void restore() const
    {
        for (std::size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &before_[i], nullptr);
    }

private:
    struct sigaction before_[std::size(kSignals)] = {};
};

/// A temporary folder for the rendezvous of one run, removed at its end.
class MeetingPlace {
public:
    MeetingPlace()
    {
        const char* const wanted = std::getenv("TMPDIR");
        const std::filesystem::path parent = wanted && *wanted ? wanted : "/tmp";
        auto pattern = (parent / "meshard-ranks-XXXXXX").string();
        if (!mkdtemp(pattern.data())) {
            throw IoError("--nproc: cannot make a folder in {}: {}. Set TMPDIR to a folder that can be written.",
                          parent.string(), std::strerror(errno));
        }
        folder_ = pattern;
        // Ranks that cannot write there could not even say so in one voice.
        std::ofstream file(folder_ / "trial");
        if (file << std::string(4096, ' ') && file.flush()) return;
        const int reason = errno;
        std::filesystem::remove_all(folder_);
        throw IoError("--nproc: cannot write in {}: {}. Set TMPDIR to a folder with room.", parent.string(),
                      std::strerror(reason));
    }
    /// Does nothing in ranks that were forked from the process which made the folder.
    ~MeetingPlace()
    {
        std::error_code ignored;
        if (getpid() == maker_) std::filesystem::remove_all(folder_, ignored);
    }
    MeetingPlace(const MeetingPlace&) = delete;
    MeetingPlace& operator=(const MeetingPlace&) = delete;

    const std::filesystem::path& folder() const { return folder_; }

private:
    std::filesystem::path folder_;
    pid_t maker_ = getpid();
};

/// The environment variables that tell a rank its place among the ranks of this machine.
std::vector<std::pair<std::string, std::string>> variables_of_rank(int rank, int size,
                                                                   const std::filesystem::path& folder)
{
    return {{"RANK", std::to_string(rank)},
            {"WORLD_SIZE", std::to_string(size)},
            {"LOCAL_RANK", std::to_string(rank)},
            {"LOCAL_WORLD_SIZE", std::to_string(size)},
            {"MESHARD_LAUNCH", "env"},
            {"MESHARD_RENDEZVOUS", "file://" + (folder / "store").string()},
            {kFailureFolder, folder.string()}};
}

/// Forks a process that becomes a rank.
/// @param arguments   of the copy of this program that it executes; null: it returns, with the program's own handlers
///                    of signals
/// @return the number of the process; 0 in the rank that returns
pid_t start_rank(int rank, int size, const std::vector<std::string>* arguments, const std::filesystem::path& folder,
                 const RememberedSignals& signals)
{
    const auto variables = variables_of_rank(rank, size, folder);
    std::vector<char*> argv{const_cast<char*>("meshard")};
    if (arguments)
        for (const auto& argument : *arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);

    // Signals are blocked during fork: the new process starts with this one's handlers and would lose a signal.
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    const auto parent = getpid();
    const pid_t pid = fork();
    if (pid == 0) {
        for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
        if (arguments) {
            RememberedSignals::let_them_end();
        } else {
            signals.restore();
            prctl(PR_SET_NAME, fmt::format("meshard rank {}", rank).c_str());  // as lists of processes show it
        }
        // Until a rank of a program with handlers has its own, signals wait: they would end it without a message, or
        // with the launcher's.
        if (signals.had_handler())
            for (const int signal : {SIGINT, SIGHUP}) sigaddset(&before, signal);
        prctl(PR_SET_PDEATHSIG, SIGTERM);  // ranks do not outlive the launcher
        if (getppid() != parent) _exit(kExitOfDeadRank);
    }
    sigprocmask(SIG_SETMASK, &before, nullptr);
    if (pid < 0) throw CommunicationError("--nproc: cannot start rank {}: {}.", rank, std::strerror(errno));
    if (pid == 0 && arguments) {
        execv("/proc/self/exe", argv.data());
        _exit(kExitOfDeadRank);
    }
    return pid;
}

struct Failure {
    int rank = -1;
    int exit_code = 0;
    std::string message;
};

/// Returns whether a rank ended because of an interruption.
bool is_interrupted(int status)
{
    if (WIFEXITED(status)) return WEXITSTATUS(status) == kExitOfInterruption;
    return num_signals > 0 &&
           std::find(std::begin(kSignals), std::end(kSignals), WTERMSIG(status)) != std::end(kSignals);
}

/// Selects the failure to show: a rank that was killed, else the first one that reports a failure of its own, else the
/// first one. An interruption needs no message.
Failure explain(const std::vector<int>& order, const std::vector<int>& status, const std::filesystem::path& folder)
{
    // If all ranks end with the same code and none reports a failure, that code is their result, and they have printed
    // the message.
    const bool is_result_of_all = std::ranges::all_of(status, [&](int other) { return other == status.front(); });
    Failure best;
    int best_class = 4;
    for (const int rank : order) {
        if (status[rank] == 0) continue;
        Failure failure{rank, WIFEXITED(status[rank]) ? WEXITSTATUS(status[rank]) : kExitOfDeadRank, {}};
        int kind = 2;
        std::ifstream file(folder / fmt::format("failure.{}", rank));
        std::string first_line;
        if (std::getline(file, first_line)) {
            failure.message.assign(std::istreambuf_iterator<char>(file), {});
            kind = first_line == "consequence" ? 3 : 1;
        }
        if (is_interrupted(status[rank])) {
            failure = {rank, kExitOfInterruption, {}};
            kind = 2;
        } else if (WIFSIGNALED(status[rank]) && WTERMSIG(status[rank]) == SIGPIPE) {
            failure = {rank, 128 + SIGPIPE, {}};  // who reads its output has enough, as of a program without ranks
            kind = 0;
        } else if (WIFSIGNALED(status[rank])) {
            const int signal = WTERMSIG(status[rank]);
            failure.message = fmt::format("meshard: rank {} was killed by signal {} ({}{}). All ranks have stopped.",
                                          rank, signal, strsignal(signal), signal == SIGKILL ? "; out of memory?" : "");
            kind = 0;
        } else if (failure.message.empty() && !is_result_of_all) {
            failure.message = fmt::format("meshard: rank {} ended with exit code {}.", rank, failure.exit_code);
        }
        if (kind < best_class) {
            best_class = kind;
            best = failure;
        }
    }
    return best;
}

/// Starts ranks, waits for them and returns the exit code; empty in ranks that go on in this program.
std::optional<int> run(int size, const std::vector<std::string>* arguments, double grace_seconds)
{
    const RememberedSignals signals;  // in effect until the folder is removed, too
    std::optional<MeetingPlace> place(std::in_place);

    std::vector<pid_t> pids(size, -1);
    for (int rank = 0; rank < size; ++rank) {
        pids[rank] = start_rank(rank, size, arguments, place->folder(), signals);
        if (pids[rank] == 0) return std::nullopt;
    }

    std::vector<int> status(size, 0), order;  // order: ranks in the order in which they ended by themselves
    int running = size;
    double since_failure = -1;
    bool ended_by_us = false;
    const auto signal_all = [&](int signal) {
        for (const auto pid : pids) {
            if (pid > 0) kill(pid, signal);
        }
    };
    int num_passed_on = 0;
    while (running > 0) {
        for (int rank = 0; rank < size; ++rank) {
            int state = 0;
            if (pids[rank] <= 0 || waitpid(pids[rank], &state, WNOHANG) != pids[rank]) continue;
            pids[rank] = -1;
            --running;
            // The end of a rank that we have killed is not a failure of its own.
            if (!ended_by_us) {
                status[rank] = state;
                order.push_back(rank);
            }
            if (state != 0 && since_failure < 0) since_failure = 0;
        }
        if (const int count = num_signals; num_passed_on != count) {
            num_passed_on = count;
            signal_all(signal_received);
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
    const auto failure = explain(order, status, place->folder());
    place.reset();  // first: a message to a closed pipe ends this process
    if (failure.rank < 0) return 0;
    if (!failure.message.empty()) std::fprintf(stderr, "%s\n", failure.message.c_str());
    return failure.exit_code;
}

}  // namespace

int run_local_ranks(int size, const std::vector<std::string>& arguments, double grace_seconds)
{
    return *run(size, &arguments, grace_seconds);
}

std::optional<int> fork_local_ranks(int size, double grace_seconds)
{
    std::fflush(nullptr);
    std::cout.flush();
    return run(size, nullptr, grace_seconds);
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
