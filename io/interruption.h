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

/// From now on Ctrl-C (SIGINT) and SIGTERM end the process with exit code 130: at once if no output is unfinished, else
/// by way of `throw_if_interrupted`. The second signal ends it at once in any case.
void end_well_on_interruption();

/// Called while writing. @throws Interrupted if a signal has come.
void throw_if_interrupted();

}  // namespace meshard
