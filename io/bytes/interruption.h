// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/error.h"

#include <string>

namespace meshard {

/// The user asked to stop while an output was unfinished. While the exception unwinds the stack, destructors remove the output.
class Interrupted : public Error {
public:
    using Error::Error;
};

/// A guard that lives while an output is unfinished: if the process ended now, a half-written output would stay.
class UnfinishedOutput {
public:
    UnfinishedOutput();
    ~UnfinishedOutput();
    UnfinishedOutput(const UnfinishedOutput&) = delete;
    UnfinishedOutput& operator=(const UnfinishedOutput&) = delete;
};

/// Whether the signal being handled is a second request to end, and not another copy of the first: a terminal, `timeout` and `kill -- -GROUP` send a signal to
/// every process of a group, and the launcher of the ranks (`--nproc`, mpirun, torchrun) passes its own copy on to them too. A signal within a second
/// of the first is the same request. Safe in a signal handler; call it once for each signal.
bool is_further_wish_to_end() noexcept;

/// From now on Ctrl-C (SIGINT), SIGTERM and the loss of the terminal (SIGHUP, unless it is ignored as under nohup) end the process with exit code 130: at
/// once if no output is unfinished, else when `throw_if_interrupted` is called next. A second request ends it at once in any case. Call it before other threads
/// are started: SIGTERM is blocked in all threads, and a thread that this function starts passes it on as SIGINT.
void end_well_on_interruption();

/// A guard for writing files that belong together, which takes a moment: an interruption waits until all of them are there, and then changes nothing.
class HeldInterruption {
public:
    HeldInterruption();
    ~HeldInterruption();
    HeldInterruption(const HeldInterruption&) = delete;
    HeldInterruption& operator=(const HeldInterruption&) = delete;

private:
    UnfinishedOutput unfinished_;
};

/// What is said when an interruption ends the process: `line` goes to stderr if that happens at once (empty: nothing), `left` is the end of what
/// `throw_if_interrupted` says; empty: that the unfinished output was removed.
void say_on_interruption(std::string line, std::string left);

/// Lets the signals wait that `end_well_on_interruption` handles, until that is called, also by the program which this one becomes (exec): while it loads, they
/// would end it without a word.
void delay_interruption();

/// Called when the process has done its work and its exit code is known: signals to end are ignored from now on.
void ignore_interruption();

/// Installs `handler` for the signals above. May be called again with another one.
void handle_interruption(void (*handler)(int));

/// Called regularly while an output is written. @throws Interrupted if a signal has arrived.
void throw_if_interrupted();

}  // namespace meshard
