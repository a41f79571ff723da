// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

namespace meshard {

/// `meshard bench plan`; gives the exit code.
int plan_bench_command(std::span<const std::string> arguments);

}  // namespace meshard
