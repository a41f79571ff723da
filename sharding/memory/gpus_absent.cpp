// SPDX-License-Identifier: Apache-2.0
#include "sharding/memory/gpus.h"

namespace meshard {

std::vector<Gpu> gpus_with_memory()
{
    return {};
}

std::vector<Gpu> visible_gpus()
{
    return {};
}

std::vector<std::pair<std::string, std::string>> gpu_library_versions()
{
    return {};
}

}  // namespace meshard
