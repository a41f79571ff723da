// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace meshard {

class Error;

/// Called with each error of meshard that leaves an operator or its backward, to throw one of another type instead: on
/// the way to Python, LibTorch turns errors of types that it does not know into RuntimeErrors. Applies to the process;
/// null, the default, for none.
using ErrorTranslation = void (*)(const Error& error);
void set_error_translation(ErrorTranslation translation);

/// Throws what the translation throws, if there is one.
void translate_error(const Error& error);

}  // namespace meshard
