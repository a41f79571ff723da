// SPDX-License-Identifier: Apache-2.0
#include "apps/program/version.h"

namespace meshard {

// CMakeLists.txt defines the macros.

std::string program_version()
{
    return MESHARD_VERSION;
}

std::vector<std::pair<std::string, std::string>> library_versions()
{
    return {
        {"METIS", MESHARD_METIS_VERSION},
#ifdef MESHARD_VTK_VERSION
        {"VTK", MESHARD_VTK_VERSION},
#endif
#ifdef MESHARD_TORCH_VERSION
        {"LibTorch", MESHARD_TORCH_VERSION},
#endif
    };
}

}  // namespace meshard
