// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

namespace meshard {

/// What an exception says, for users: without the calls that led there, which LibTorch's errors list.
std::string error_text(const std::exception& error);

/// Tells the other ranks of this run, if they wait for this one, that it ends (`report_failure_to_ranks`).
void tell_other_ranks(const std::string& message);

}  // namespace meshard
