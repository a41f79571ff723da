// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/error.h"

#include <string>

namespace meshard {

/// Thrown when the user asks to stop while an output is unfinished. While the exception unwinds the stack, destructors
/// remove the output.
class Interrupted : public Error {
public:
    using Error::Error;
};

/// A guard that marks an unfinished output: if the process ended now, a half-written output would be left.
class UnfinishedOutput {
public:
    UnfinishedOutput();
    ~UnfinishedOutput();
    UnfinishedOutput(const UnfinishedOutput&) = delete;
    UnfinishedOutput& operator=(const UnfinishedOutput&) = delete;
};

/// Returns whether the signal being handled is a second request to end, and not another copy of the first: a terminal,
/// `timeout` and `kill -- -GROUP` send a signal to every process of a group, and the launcher of the ranks (`--nproc`,
/// mpirun, torchrun) passes its own copy on to them too. A signal within a second of the first belongs to the same
/// request. Safe in a signal handler; call it once for each signal.
bool is_further_wish_to_end() noexcept;

/// From then on Ctrl-C (SIGINT), SIGTERM and the loss of the terminal (SIGHUP, unless it is ignored as under nohup) end
/// the process with exit code 130: at once if no output is unfinished, else at the next call of `throw_if_interrupted`.
/// A second request always ends it at once. Call it before other threads are started: SIGTERM is blocked in all
/// threads, and a thread that this function starts passes it on as SIGINT.
void end_well_on_interruption();

/// A guard for writing files that belong together: an interruption waits until all of them are written, and then has no
/// effect.
class HeldInterruption {
public:
    HeldInterruption();
    ~HeldInterruption();
    HeldInterruption(const HeldInterruption&) = delete;
    HeldInterruption& operator=(const HeldInterruption&) = delete;

private:
    UnfinishedOutput unfinished_;
};

/// Sets the messages of an interruption that ends the process: `line` is printed to stderr if that happens at once
/// (empty: nothing), `left` is the end of the message of `throw_if_interrupted` (empty:
/// that the unfinished output was removed).
void say_on_interruption(std::string line, std::string left);

/// Blocks the signals that `end_well_on_interruption` handles until that is called, also in the program that replaces
/// this one (exec): while it loads, they would end it without a message.
void delay_interruption();

/// Called when the process has done its work and its exit code is known: from then on signals to end are ignored.
void ignore_interruption();

/// Installs `handler` for the signals above. May be called again with another one.
void handle_interruption(void (*handler)(int));

/// Called regularly while an output is written. @throws Interrupted if a signal has arrived.
void throw_if_interrupted();

}  // namespace meshard
