// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// Returns meshard's own version, e.g. `0.2.0`.
std::string program_version();

/// Returns name and version of each library that this build uses.
std::vector<std::pair<std::string, std::string>> library_versions();

}  // namespace meshard
