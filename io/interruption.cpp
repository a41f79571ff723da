// SPDX-License-Identifier: Apache-2.0
#include "io/interruption.h"

#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <unistd.h>

namespace meshard {

namespace {

// Lock-free, so that a signal handler may use them.
std::atomic<int> num_unfinished{0};
std::atomic<bool> is_interrupted{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

std::atomic<std::int64_t> first_signal_at{0};   // milliseconds of the monotonic clock
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

void interrupt(int)
{
    if (is_further_wish_to_end() || num_unfinished == 0) _exit(130);
    is_interrupted = true;
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
