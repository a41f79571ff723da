// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

namespace meshard {

/// Returns the message of an exception without the backtrace that LibTorch's errors append.
std::string error_text(const std::exception& error);

/// Reports to ranks that wait for this one that it ends with `message` (`report_failure_to_ranks`).
void tell_other_ranks(const std::string& message);

}  // namespace meshard
