// SPDX-License-Identifier: Apache-2.0
#include "io/interruption.h"

#include <atomic>
#include <csignal>
#include <unistd.h>

namespace meshard {

namespace {

// Lock-free, so that a signal handler may use them.
std::atomic<int> num_unfinished{0};
std::atomic<bool> is_interrupted{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void interrupt(int)
{
    if (num_unfinished == 0 || is_interrupted.exchange(true)) _exit(130);
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

void end_well_on_interruption()
{
    std::signal(SIGINT, interrupt);
    std::signal(SIGTERM, interrupt);
}

void throw_if_interrupted()
{
    if (is_interrupted) throw Interrupted("interrupted; the unfinished output was removed.");
}

}  // namespace meshard
