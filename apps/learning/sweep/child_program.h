// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <span>
#include <string>

namespace meshard {

/// Runs this program anew with other words and waits for its end. What it says goes to the file `log`, after what is there. A signal that asks this process to
/// end (Ctrl-C, SIGTERM, SIGHUP) is passed on, and the child does not outlive this process.
/// @return its exit code; 128 and the signal's number for one that a signal ended
/// @throws Error if it cannot be started
int run_child_program(std::span<const std::string> words, const std::filesystem::path& log);

/// Whether such a signal has come since the first child was started.
bool is_asked_to_end();

}  // namespace meshard
