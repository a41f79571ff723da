// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/error.h"

#include <functional>
#include <string>

namespace meshard {

class RankGroup;

/// Nothing can be predicted on an input. Thrown on every rank, so that all may go on with the next input.
class UnusableInput : public InvalidInput {
public:
    UnusableInput(const std::string& text, int exit_code) : InvalidInput(text), exit_code_(exit_code) {}

    int exit_code() const { return exit_code_; }  ///< of the error that made it so

private:
    int exit_code_;
};

/// Does a rank's share of what concerns one input: `work` has no messages to other ranks. Collective.
/// @throws UnusableInput on every rank, with the error of one, if `work` throws on any. A UsageError, which is every
/// rank's, stays one.
void read_together(const RankGroup& ranks, const std::function<void()>& work);

}  // namespace meshard
