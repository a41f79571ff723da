// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

namespace meshard {

/// Makes `meshard-models` in the folder `programs` find LibTorch: the one in the environment variable MESHARD_TORCH if
/// it is set, otherwise the one beside the package if a wheel brought the programs, or the one behind the link
/// ../lib/meshard/torch of an installation. Programs in a build folder have its path built in. This function checks the
/// version, since the dynamic loader's messages do not say what to do.
/// @throws UsageError if there is none, or another version than meshard was compiled with
void prepare_torch(const std::string& verb, const std::filesystem::path& programs);

}  // namespace meshard
