// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

namespace meshard {

/// Runs `meshard bench data CONFIG`, which measures how fast the training cases of a configuration come from the disk.
/// Returns the exit code.
int data_bench_command(std::span<const std::string> arguments);

}  // namespace meshard
