// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/interruption.h"

#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>

namespace meshard {

namespace {

// Lock-free, so that a signal handler may use them.
std::atomic<int> num_unfinished{0};
std::atomic<bool> is_interrupted{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

std::atomic<std::int64_t> first_signal_at{0};  // milliseconds of the monotonic clock
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

std::atomic<int> num_held{0};
std::atomic_flag is_ending;  // a thread writes the last words, and ends the process

struct LastWords {
    std::string line, left;
};
std::atomic<const LastWords*> last_words{nullptr};
static_assert(std::atomic<const LastWords*>::is_always_lock_free);

void interrupt(int)
{
    if (is_further_wish_to_end() || num_unfinished == 0) {
        // A rank at a terminal gets a signal from there and one from its launcher, perhaps in two threads at once.
        while (is_ending.test_and_set()) ::pause();
        if (const auto* words = last_words.load())
            if (::write(STDERR_FILENO, words->line.data(), words->line.size()) < 0) _exit(130);
        _exit(130);
    }
    is_interrupted = true;
}

sigset_t delayed_signals()
{
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    return signals;
}

/// From then on SIGTERM reaches no handler: a thread waits for it and sends SIGINT instead. While METIS cuts, it
/// replaces our handler of SIGTERM by its own, which jumps out of any function, also out of malloc, whose lock then
/// stays locked.
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
        // Also in threads and programs that are started later, which wait for it in the same way.
        sigaddset(&before, SIGTERM);
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

HeldInterruption::HeldInterruption()
{
    throw_if_interrupted();
    ++num_held;
}

HeldInterruption::~HeldInterruption()
{
    --num_held;
}

void say_on_interruption(std::string line, std::string left)
{
    static std::deque<LastWords> all;  // earlier texts are kept: a handler may be about to read one
    static std::mutex one_at_a_time;
    const std::lock_guard lock(one_at_a_time);
    last_words = &all.emplace_back(LastWords{std::move(line), std::move(left)});
}

void delay_interruption()
{
    const auto signals = delayed_signals();
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

void handle_interruption(void (*handler)(int))
{
    struct sigaction action = {}, old = {};
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&action.sa_mask, signal);  // one at a time in a thread
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
        if (signal == SIGHUP && sigaction(signal, nullptr, &old) == 0 && old.sa_handler == SIG_IGN) continue;
        sigaction(signal, &action, nullptr);
    }
}

void end_well_on_interruption()
{
    handle_interruption(interrupt);
    take_termination_for_interruption();
    const auto signals = delayed_signals();
    pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

void ignore_interruption()
{
    handle_interruption(SIG_IGN);
}

void throw_if_interrupted()
{
    if (!is_interrupted || num_held > 0) return;
    const auto* words = last_words.load();
    throw Interrupted(words && !words->left.empty() ? "interrupted. " + words->left
                                                    : "interrupted; the unfinished output was removed.");
}

}  // namespace meshard
