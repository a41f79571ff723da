// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace meshard {

/// A place in the source tree, as `docs/commands.md`. Known to one object file alone, so that the others are the same
/// wherever the tree lies.
std::string source_path(const std::string& relative);

/// The program under test.
std::string program_path();

/// The launcher of ranks over MPI; empty in builds without.
std::string mpirun_path();

}  // namespace meshard
