// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/interruption.h"

#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <system_error>
#include <thread>
#include <unistd.h>

namespace meshard {

namespace {

// Lock-free, so that a signal handler may use them.
std::atomic<int> num_unfinished{0};
std::atomic<bool> is_interrupted{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

std::atomic<std::int64_t> first_signal_at{0};  // milliseconds of the monotonic clock
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

void interrupt(int)
{
    if (is_further_wish_to_end() || num_unfinished == 0) _exit(130);
    is_interrupted = true;
}

/// From now on SIGTERM reaches no handler: a thread waits for it and sends SIGINT instead. While METIS cuts, it replaces our handler of SIGTERM by its own,
/// which jumps out of any function, also out of malloc, whose lock then stays locked.
void take_termination_for_interruption()
{
    sigset_t termination, all, before;
    sigemptyset(&termination);
    sigaddset(&termination, SIGTERM);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // other signals are handled by the other threads
    try {
        std::thread([termination] {
            for (int signal = 0;;) {
                if (sigwait(&termination, &signal) == 0) kill(getpid(), SIGINT);
            }
        }).detach();
        sigaddset(&before, SIGTERM);      // also of threads and programs that are started later: those wait for it in the same way
    } catch (const std::system_error&) {  // no thread could be started: SIGTERM keeps its handler
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

UnfinishedOutput::UnfinishedOutput()
{
    ++num_unfinished;
}

UnfinishedOutput::~UnfinishedOutput()
{
    --num_unfinished;
}

bool is_further_wish_to_end() noexcept
{
    constexpr std::int64_t same_wish = 1000;
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    const std::int64_t now = std::int64_t{1000} * time.tv_sec + time.tv_nsec / 1'000'000;
    std::int64_t first = 0;
    return !first_signal_at.compare_exchange_strong(first, now) && now - first >= same_wish;
}

void handle_interruption(void (*handler)(int))
{
    struct sigaction action = {}, old = {};
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
        if (signal == SIGHUP && sigaction(signal, nullptr, &old) == 0 && old.sa_handler == SIG_IGN) continue;
        sigaction(signal, &action, nullptr);
    }
}

void end_well_on_interruption()
{
    handle_interruption(interrupt);
    take_termination_for_interruption();
}

void ignore_interruption()
{
    handle_interruption(SIG_IGN);
}

void throw_if_interrupted()
{
    if (is_interrupted) throw Interrupted("interrupted; the unfinished output was removed.");
}

}  // namespace meshard
