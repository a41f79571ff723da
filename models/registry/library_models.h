// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/registry/registry.h"

#include <vector>

namespace meshard {

/// The library's models for points and meshes, in the order in which programs list them.
std::vector<ModelEntry> library_models();

}  // namespace meshard
