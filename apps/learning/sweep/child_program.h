// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <span>
#include <string>

namespace meshard {

/// Runs this program with the arguments `words` and waits for its end. Its output is appended to the file `log`. A
/// signal that asks this process to end (Ctrl-C, SIGTERM, SIGHUP) is passed on, and the child does not outlive this
/// process.
/// @return its exit code, or 128 plus the number of the signal that ended it
/// @throws Error if it cannot be started
int run_child_program(std::span<const std::string> words, const std::filesystem::path& log);

/// Whether a signal to end has come since the first child was started.
bool is_asked_to_end();

}  // namespace meshard
