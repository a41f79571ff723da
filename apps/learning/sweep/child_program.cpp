// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/sweep/child_program.h"

#include "io/bytes/interruption.h"
#include "partition/error.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace meshard {
namespace {

volatile std::sig_atomic_t child_to_signal = 0, has_been_asked = 0;

void tell_child(int)
{
    has_been_asked = 1;
    if (child_to_signal > 0) kill(static_cast<pid_t>(child_to_signal), SIGTERM);
}

}  // namespace

int run_child_program(std::span<const std::string> words, const std::filesystem::path& log)
{
    const int file = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file < 0) throw IoError("{} cannot be written: {}.", log.string(), std::strerror(errno));
    std::vector<char*> argv{const_cast<char*>("meshard")};
    for (const auto& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);

    // Signals are blocked during fork, so that none comes before the handler knows the child.
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    const auto parent = getpid();
    const pid_t pid = fork();
    if (pid == 0) {
        for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, SIG_DFL);
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, nullptr);
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != parent) _exit(127);
        dup2(file, STDOUT_FILENO);
        dup2(file, STDERR_FILENO);
        execv("/proc/self/exe", argv.data());
        _exit(127);
    }
    close(file);
    if (pid > 0) {
        child_to_signal = pid;
        handle_interruption(tell_child);
    }
    sigprocmask(SIG_SETMASK, &before, nullptr);
    if (pid < 0) throw Error("a run cannot be started: {}.", std::strerror(errno));
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    child_to_signal = 0;
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    return 128 + WTERMSIG(status);
}

bool is_asked_to_end()
{
    return has_been_asked != 0;
}

}  // namespace meshard
