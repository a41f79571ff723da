// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace meshard {

struct ProgramResult {
    int exit_code = -1;  ///< 128 + signal if a signal ended it
    std::string out;     ///< stdout
    std::string err;     ///< stderr
};

struct ProgramOptions {
    std::optional<std::uint64_t> max_file_bytes;  ///< writing beyond it fails, as on a full disk
    std::function<bool()> interrupt_when;         ///< asked again and again; SIGINT is sent once it is true
    std::string stdout_to;                        ///< file or device that takes stdout; empty: captured
};

/// Runs a program with these arguments to its end, without input.
ProgramResult run_program(const std::string& program, const std::vector<std::string>& arguments,
                          const ProgramOptions& options = {});

}  // namespace meshard
