// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

namespace meshard {

/// Whether the verbs that need LibTorch were built.
bool has_models_program();

/// Goes on as the other of the two programs `meshard` and `meshard-models`, which lie side by side, with the verb and its arguments. Verbs that need
/// LibTorch live in the second: loading its libraries takes a quarter of a second and 150 MB, which those for meshes can do without.
/// @throws UsageError if this build has no LibTorch, or none is found (torch_folder.h), Error if the other program cannot be started; does not come back
/// otherwise
[[noreturn]] void run_in_sibling_program(const std::string& verb, std::span<const std::string> arguments);

}  // namespace meshard
