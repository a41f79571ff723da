// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/error.h"

namespace meshard {

/// The user asked to stop while an output was unfinished; on its way up this removes it.
class Interrupted : public Error {
public:
    using Error::Error;
};

/// An output that would stay half-written if the process ended now. Lives as long as that is so.
class UnfinishedOutput {
public:
    UnfinishedOutput();
    ~UnfinishedOutput();
    UnfinishedOutput(const UnfinishedOutput&) = delete;
    UnfinishedOutput& operator=(const UnfinishedOutput&) = delete;
};

/// Whether the signal being handled is a further wish to end, and not the first that arrives once more: a terminal, `timeout` and `kill -- -GROUP` reach
/// every process of a group, and what started the ranks (`--nproc`, mpirun, torchrun) passes its own copy on to them besides. What comes within a second
/// of the first signal is the same wish. Safe in a signal handler; to be asked once for each signal.
bool is_further_wish_to_end() noexcept;

/// From now on Ctrl-C (SIGINT), SIGTERM and the loss of the terminal (SIGHUP, unless it is ignored as under nohup) end the process with exit code 130: at
/// once if no output is unfinished, else by way of `throw_if_interrupted`. A further wish ends it at once in any case. To be called before other threads are
/// started: SIGTERM is blocked in all of them, and a thread of this function's own passes it on as SIGINT.
void end_well_on_interruption();

/// What the process was to do is done, and its exit code is known: a wish to end changes nothing any more.
void ignore_interruption();

/// Calls `handler` for the signals above. Safe to be called again with another one.
void handle_interruption(void (*handler)(int));

/// Called while writing. @throws Interrupted if a signal has come.
void throw_if_interrupted();

}  // namespace meshard
