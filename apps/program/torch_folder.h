// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

namespace meshard {

/// Sees to it that `meshard-models` in the folder `programs` will find LibTorch: that of the environment variable MESHARD_TORCH, if it is set; that which
/// ../lib/meshard/torch leads to, if the programs are installed; those of a build know where theirs is. The loader's words for what is missing help nobody.
/// @throws UsageError if there is none, or another version than this was compiled with
void prepare_torch(const std::string& verb, const std::filesystem::path& programs);

}  // namespace meshard
