// SPDX-License-Identifier: Apache-2.0
// LibTorch's headers bring an fmt of their own, but its libraries do not export it: what `fmt::format` calls is compiled here, once.
#define FMT_HEADER_ONLY
#include <fmt/core.h>

namespace meshard {

extern std::string (*const compose)(fmt::string_view, fmt::format_args);
std::string (*const compose)(fmt::string_view, fmt::format_args) = fmt::vformat;

}  // namespace meshard
