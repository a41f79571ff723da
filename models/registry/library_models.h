// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/registry/registry.h"

#include <vector>

namespace meshard {

/// The library's own models for points and meshes, in the order in which they are listed to people.
std::vector<ModelEntry> library_models();

}  // namespace meshard
