// SPDX-License-Identifier: Apache-2.0
#include "tests/support/test_paths.h"

namespace meshard {

std::string source_path(const std::string& relative)
{
    return std::string(MESHARD_SOURCE_DIR) + "/" + relative;
}

std::string program_path()
{
    return MESHARD_PROGRAM;
}

std::string mpirun_path()
{
    return MESHARD_MPIRUN;
}

}  // namespace meshard
