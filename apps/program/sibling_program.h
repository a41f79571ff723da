// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

namespace meshard {

/// Returns whether the verbs that need LibTorch were built.
bool has_models_program();

/// Replaces this process by the other of the two programs `meshard` and `meshard-models`, which are in the same folder,
/// with the verb and its arguments. Verbs that need LibTorch are in `meshard-models`, since loading its libraries takes
/// a quarter of a second and 150 MB. Does not return.
/// @throws UsageError if this build has no LibTorch, or none is found, Error if the other program
///         cannot be started
[[noreturn]] void run_in_sibling_program(const std::string& verb, std::span<const std::string> arguments);

}  // namespace meshard
